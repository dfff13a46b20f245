/* What the load generators share: settings, clock, sockets on 127.0.0.1, and the exchange itself.
 *
 * A generator keeps at most `window` messages under way: sent, and not yet answered by everyone who
 * should answer (each subscriber, or the server with its acknowledgement). It never overruns anyone,
 * so what is lost was lost by the server. One thread does all, so it takes one core at most.
 *
 *   subscribe, warm up ─► "prepared", wait for a line ─► exchange ─► a line of JSON, wait for a line
 *
 * The two waits let whoever measures read the server's processor time right around the exchange;
 * with </dev/null there are none. Exit status: 0, or 1 with the reason on standard error. */
#ifndef LOAD_H
#define LOAD_H

#include <stdbool.h>
#include <stddef.h>

enum {
    BURST = 64,                /* datagrams per system call */
    RECEIVE_BUFFER = 4 << 20,  /* bytes that may wait for a subscriber */
    MAX_SIZE = 400,            /* payload bytes: within every dialect's limits */
};

/* A whole number that can be given as name=value. */
struct setting {
    const char *name;
    long *value;
    long least, most;
    const char *text;
};

struct load {
    long answers;                 /* expected for each message */
    long window;                  /* messages under way at most */
    long step;                    /* room for so many is waited for: several leave by one system call */
    void (*send)(long count);     /* sends exactly so many */
    long (*receive)(int wait_ms); /* waits for answers at most so long; how many came */
};

extern long port, size; /* the server's port; payload bytes */

void fail(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));

/* Takes the generator's own settings, which end with {0}, and those that all have; "help" lists them. */
void read_settings(int words, char **word, const char *about, const struct setting *own);

void allow_sockets(long count);

/* A socket connected to the server; type is SOCK_STREAM or SOCK_DGRAM. */
int connected(int type);

void send_whole(int fd, const void *bytes, size_t length);

/* Sends the same datagram so many times. */
void send_copies(int fd, const void *datagram, size_t length, long count);

/* Whether there is something to read within the time. */
bool readable(int fd, int wait_ms);

/* Reads and forgets whatever is there now. */
void discard(int fd);

/* Subscribers, watched together. */
int watcher(void);
void watch(int watcher, int fd, long number);
/* The numbers of those that can be read; at most `most` of them. */
int watched(int watcher, long *numbers, int most, int wait_ms);

/* Everything after the subscribing; returns the exit status. */
int run(const struct load *load);

#endif
