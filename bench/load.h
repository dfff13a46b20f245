/* What the load generators share: settings, clock, sockets on 127.0.0.1, and the exchange itself.
 *
 * A generator keeps at most `window` messages under way: sent, and not yet answered by everyone who
 * should answer (each subscriber, or the server with its acknowledgement). It never overruns anyone,
 * so what is lost was lost by the server. One thread does all, so it takes one core at most.
 *
 * With a `rate` messages leave when they are due, and how long each answer took is counted from then: a
 * server that stalls is charged for all that was due meanwhile.
 *
 *   subscribe, warm up ─► "prepared", wait for a line ─► exchange ─► a line of JSON, wait for a line ─► exchange …
 *
 * The waits let whoever measures read the server's processor time right around an exchange, and have several
 * generators go in turns. The JSON tells of all exchanges so far. With </dev/null there is one. Exit status: 0, or 1 with the reason on standard error. */
#ifndef LOAD_H
#define LOAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    READY = 128,               /* streams or sockets that are told as readable at once */
    BURST = 64,                /* datagrams per system call */
    RECEIVE_BUFFER = 4 << 20,  /* bytes that may wait for a subscriber */
    MAX_DATAGRAM = 508,
    MAX_SIZE = 400,            /* payload bytes: within every dialect's limits */
    MAX_LARGE = 1 << 20,       /* … of those over TCP */
    STAMP = 16,                /* bytes at the beginning of a payload that tell when it was due, as text */
    WAIT_US = 20000,
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
    long (*receive)(long wait_us); /* waits for answers at most so long; how many came */
};

extern long port, size; /* the server's port; payload bytes */
extern long rate;       /* messages a second that are offered; 0: as many as the window lets through */
extern long single;     /* 1: each message in a write of its own, by those who would let some share one */
extern long bursts;     /* 1: several datagrams go to the kernel as one, which it cuts up */
extern int64_t due;     /* with a rate: when the message that is sent now was due */

/* A payload: `size` digits, others each time, so that a log which compresses has no easy time of it. */
const char *payload(void);

/* Writes `due` to the beginning of a payload; counts how long one took by what stands there. */
void stamp(char *to);
void took(const char *from);

void fail(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));

/* Takes the generator's own settings, which end with {0} and win, and those that all have; "help" lists them. */
void read_settings(int words, char **word, const char *about, const struct setting *own);

void allow_sockets(long count);

/* A socket connected to the server; type is SOCK_STREAM or SOCK_DGRAM. */
int connected(int type);

void send_whole(int fd, const void *bytes, size_t length);

/* Sends so many datagrams with this beginning and a payload each. */
void send_datagrams(int fd, const void *beginning, size_t length, long count);

/* Has so many sent by the publishers, each its share; `send_by` sends exactly so many. */
void in_turn(long publishers, long count, void (*send_by)(long publisher, long count));

/* Whether there is something to read within the time. */
bool readable(int fd, long wait_us);

/* Reads and forgets whatever is there now. */
void discard(int fd);

/* Subscribers, watched together. */
int watcher(void);
void watch(int watcher, int fd, long number);
/* The numbers of those that can be read; at most `most` of them. */
int watched(int watcher, long *numbers, int most, long wait_us);

/* A TCP connection, and what of its input is not used yet. */
struct stream {
    int fd;
    char *bytes;
    size_t held, room;
};
struct stream opened(size_t room);
/* Reads what is there, if anything; `used` forgets the beginning. */
void read_more(struct stream *stream);
void used(struct stream *stream, size_t length);
/* Reads from those that can be read and has what came taken, which is counted. */
long take_ready(int watcher, struct stream *(*numbered)(long number), long (*take)(struct stream *stream), long wait_us);

/* Everything after the subscribing; returns the exit status. */
int run(const struct load *load);

#endif
