"""The programs that people type: thin commands over client, server and the rest.

Results go to standard output, talk to standard error. Exit status: 0 done, 1 it did not work,
2 the arguments are wrong.
"""
