/* Load in the dialects of the UDP listener: n publishers, m subscribers, and idle subscriptions.
 *
 *              subscribe        publish                             what a subscriber gets
 *   semicolon  s · topic        p · topic · ; · message             topic · ; · message
 *   soh        S · topic        \x01 · topic · \x02 · message       the same
 *   pipe       S| · topic       P| · topic · | · message            TOPIC: · topic · - MESSAGE: · message
 *
 *   fan-out (the default)   every subscriber gets every message
 *   pairs=1                 publisher i to subscriber i, each pair with a topic of its own
 *
 * Plain datagrams both ways, as ordinary clients send and receive them. soh and pipe acknowledge a subscription;
 * semicolon does not: there it is made sure of by an empty message to its topic, which must come back. An answer
 * is a delivery; pipe's acknowledgements of publishes are read besides. */
#define _GNU_SOURCE
#include "load.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

enum { MAX_TOPIC = 64, GROUP = 32, ATTEMPTS = 10, PROBE_MS = 200 };

static const struct dialect {
    const char *subscribe, *publish, *delivered; /* the message follows the last two */
    bool acknowledges;                           /* subscriptions */
} DIALECTS[] = {
    {"s%s", "p%s;", "%s;", false},
    {"S%s", "\x01%s\x02", "\x01%s\x02", true},
    {"S|%s", "P|%s|", "TOPIC: %s - MESSAGE: ", true},
};

static const char TOPIC[] = "bench/load", PAIR[] = "bench/load/%05ld", IDLE[] = "bench/idle/%ld";
static const char ERROR[] = "ERROR: "; /* pipe's refusal */
static const char ABOUT[] = "semicolon, soh or pipe: publishers and subscribers over UDP, with a window.";
static long dialect = 0, publishers = 1, subscribers = 1, pairs = 0, window = 200, idle = 0;
static const struct setting SETTINGS[] = {
    {"dialect", &dialect, 0, 2, "0: semicolon, 1: soh, 2: pipe"},
    {"publishers", &publishers, 1, 1000, "sockets that publish, in turn"},
    {"subscribers", &subscribers, 1, 10000, "sockets that get messages"},
    {"pairs", &pairs, 0, 1, "1: each subscriber gets the messages of one publisher"},
    {"window", &window, 1, 10000, "messages under way at most"},
    {"idle", &idle, 0, 60000, "further sockets, each with a topic of its own that gets nothing"},
    {0},
};

struct publisher {
    int fd;
    char beginning[MAX_DATAGRAM];
};

static struct publisher *publishing;
static int watching, *receiving;
static size_t beginning_length, delivered_length; /* the same for all: so are their topics' lengths */

/* `form` is one of the dialect's, `topics` tells the topic by the number. Returns the length. */
static int put(char *to, const char *form, const char *topics, long number)
{
    char topic[MAX_TOPIC];
    snprintf(topic, sizeof topic, topics, number);
    return snprintf(to, MAX_DATAGRAM, form, topic);
}

static void send_command(int fd, const char *form, const char *topics, long number)
{
    char text[MAX_DATAGRAM];
    send_whole(fd, text, put(text, form, topics, number));
}

/* One attempt for those not yet sure; returns how many remain so. */
static int subscribe_group(const int *fds, bool *sure, int count, const char *topics, long first)
{
    const struct dialect *in = &DIALECTS[dialect];
    int unsure = 0;
    for (int i = 0; i < count; i++)
        if (!sure[i])
            send_command(fds[i], in->subscribe, topics, first + i);
    for (int i = 0; i < count && !in->acknowledges; i++)
        if (!sure[i])
            send_command(fds[i], in->publish, topics, first + i);
    for (int i = 0; i < count; i++) {
        sure[i] = sure[i] || readable(fds[i], PROBE_MS * 1000L);
        unsure += !sure[i];
    }
    return unsure;
}

static int *subscribe_all(long count, const char *topics)
{
    int *fds = calloc(count + 1, sizeof *fds);
    if (!fds)
        fail("out of memory");
    for (long first = 0; first < count; first += GROUP) {
        int members = count - first < GROUP ? count - first : GROUP, unsure = members;
        bool sure[GROUP] = {false};
        for (int i = 0; i < members; i++)
            fds[first + i] = connected(SOCK_DGRAM);
        for (int attempt = 0; unsure && attempt < ATTEMPTS; attempt++)
            unsure = subscribe_group(fds + first, sure, members, topics, first);
        if (unsure)
            fail("%d of the subscribers %ld to %ld get nothing", unsure, first, first + members - 1);
    }
    return fds;
}

static void make_publisher(struct publisher *one, const char *topics, long number)
{
    char delivered[MAX_DATAGRAM];
    delivered_length = put(delivered, DIALECTS[dialect].delivered, topics, number) + size;
    beginning_length = put(one->beginning, DIALECTS[dialect].publish, topics, number);
    one->fd = connected(SOCK_DGRAM);
}

static void send_by(long publisher, long count)
{
    send_datagrams(publishing[publisher].fd, publishing[publisher].beginning, beginning_length, count);
}

static void send_messages(long count)
{
    in_turn(publishers, count, send_by);
}

static long receive_burst(int fd)
{
    static char bytes[BURST][MAX_DATAGRAM];
    static struct iovec parts[BURST];
    static struct mmsghdr burst[BURST];
    for (int i = 0; i < BURST && !parts[i].iov_base; i++) {
        parts[i] = (struct iovec){bytes[i], MAX_DATAGRAM};
        burst[i] = (struct mmsghdr){.msg_hdr = {.msg_iov = &parts[i], .msg_iovlen = 1}};
    }
    long messages = 0;
    int count = recvmmsg(fd, burst, BURST, MSG_DONTWAIT, NULL);
    for (int i = 0; i < count; i++)
        if (burst[i].msg_len == delivered_length) /* acknowledgements and late probes are shorter */
            messages++;
        else if (burst[i].msg_len >= sizeof ERROR - 1 && !memcmp(bytes[i], ERROR, sizeof ERROR - 1))
            fail("refused: %.*s", (int)burst[i].msg_len, bytes[i]);
    return messages;
}

static long receive_messages(long wait_us)
{
    long ready[READY], messages = 0;
    int count = watched(watching, ready, READY, wait_us);
    for (int i = 0; i < count; i++)
        messages += receive_burst(ready[i] < publishers ? publishing[ready[i]].fd : receiving[ready[i] - publishers]);
    return messages;
}

int main(int words, char **word)
{
    read_settings(words, word, ABOUT, SETTINGS);
    if (pairs && subscribers != publishers)
        fail("pairs need as many subscribers as publishers");
    allow_sockets(publishers + subscribers + idle);
    publishing = calloc(publishers, sizeof *publishing);
    if (!publishing)
        fail("out of memory");
    watching = watcher();
    for (long i = 0; i < publishers; i++) {
        make_publisher(&publishing[i], pairs ? PAIR : TOPIC, i);
        watch(watching, publishing[i].fd, i);
    }
    subscribe_all(idle, IDLE);
    receiving = subscribe_all(subscribers, pairs ? PAIR : TOPIC);
    for (long i = 0; i < subscribers; i++) {
        discard(receiving[i]);
        watch(watching, receiving[i], publishers + i);
    }
    long answers = pairs ? 1 : subscribers;
    return run(&(struct load){answers, window, (window + 1) / 2, send_messages, receive_messages});
}
