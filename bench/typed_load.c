/* Load in typed: n UDP publishers, m TCP subscribers.
 *
 *   topic 50 · type 1 · content                               publish (UDP); type 3 is STRING
 *   id 11, then s · topic 50 · sf 1 · NUL                     subscribe (TCP)
 *   topic 50 · type 1 · content 1,500 · IP 16 · port 2 · \r   what a subscriber gets: always 1,570 bytes
 *
 *   fan-out (the default)   every subscriber gets every message
 *   pairs=1                 publisher i to subscriber i, each pair with a topic of its own
 *
 * Subscriptions are not acknowledged: probes are published until each subscriber has got one. */
#define _GNU_SOURCE
#include "load.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

enum { TOPIC = 50, STRING = 3, IDENTITY = 11, SUBSCRIBE = 53, FRAME = 1570, ATTEMPTS = 50, PROBE_MS = 100 };

static const char NAME[] = "bench/load", PAIR[] = "bench/load/%05ld";
static const char ABOUT[] = "typed: publishers over UDP, subscribers over TCP, with a window.";
static long publishers = 1, subscribers = 1, pairs = 0, window = 200;
static const struct setting SETTINGS[] = {
    {"publishers", &publishers, 1, 1000, "sockets that publish, in turn"},
    {"subscribers", &subscribers, 1, 10000, "connections that get messages"},
    {"pairs", &pairs, 0, 1, "1: each subscriber gets the messages of one publisher"},
    {"window", &window, 1, 10000, "messages under way at most"},
    {0},
};

struct publisher {
    int fd;
    char beginning[TOPIC + 1]; /* the topic is filled up with NULs */
};

struct subscriber {
    int fd;
    const char *topic;
    long pending; /* bytes of a frame that is not all here */
};

static int subscribed;
static struct publisher *publishing;
static struct subscriber *receivers;

static void make_publisher(struct publisher *one, long number)
{
    snprintf(one->beginning, TOPIC, pairs ? PAIR : NAME, number);
    one->beginning[TOPIC] = STRING;
    one->fd = connected(SOCK_DGRAM);
}

static void send_by(long publisher, long count)
{
    send_datagrams(publishing[publisher].fd, publishing[publisher].beginning, TOPIC + 1, count);
}

static void send_messages(long count)
{
    in_turn(publishers, count, send_by);
}

static long receive_frames(struct subscriber *one)
{
    static char bytes[256 * FRAME];
    ssize_t length = recv(one->fd, bytes, sizeof bytes, MSG_DONTWAIT);
    if (length < 0 && errno == EAGAIN)
        return 0;
    if (length <= 0)
        fail("the server closed the connection of a subscriber");
    if (!one->pending && length >= TOPIC && memcmp(bytes, one->topic, TOPIC))
        fail("what a subscriber got does not begin with its topic");
    one->pending += length;
    long frames = one->pending / FRAME;
    one->pending %= FRAME;
    return frames;
}

static long receive_messages(long wait_us)
{
    long ready[READY], messages = 0;
    int count = watched(subscribed, ready, READY, wait_us);
    for (int i = 0; i < count; i++)
        messages += receive_frames(&receivers[ready[i]]);
    return messages;
}

static void subscribe(struct subscriber *one, long number)
{
    char identity[IDENTITY] = {0}, command[SUBSCRIBE] = {'s'};
    snprintf(identity, sizeof identity, "b%d", (int)(number % 100000));
    one->topic = publishing[pairs ? number : 0].beginning;
    memcpy(command + 1, one->topic, TOPIC);
    one->fd = connected(SOCK_STREAM);
    send_whole(one->fd, identity, sizeof identity);
    send_whole(one->fd, command, sizeof command);
}

/* Publishes until this one has got something. */
static void make_sure(long number)
{
    for (int attempt = 0; attempt < ATTEMPTS; attempt++) {
        send_by(pairs ? number : 0, 1);
        if (readable(receivers[number].fd, PROBE_MS * 1000L))
            return;
    }
    fail("a subscriber gets nothing");
}

int main(int words, char **word)
{
    read_settings(words, word, ABOUT, SETTINGS);
    if (pairs && subscribers != publishers)
        fail("pairs need as many subscribers as publishers");
    allow_sockets(publishers + subscribers);
    subscribed = watcher();
    publishing = calloc(publishers, sizeof *publishing);
    receivers = calloc(subscribers, sizeof *receivers);
    if (!publishing || !receivers)
        fail("out of memory");
    for (long i = 0; i < publishers; i++)
        make_publisher(&publishing[i], i);
    for (long i = 0; i < subscribers; i++) {
        subscribe(&receivers[i], i);
        watch(subscribed, receivers[i].fd, i);
    }
    for (long i = 0; i < subscribers; i++)
        make_sure(i);
    while (receive_messages(PROBE_MS * 1000L)) /* the other probes */
        continue;
    long answers = pairs ? 1 : subscribers;
    return run(&(struct load){answers, window, (window + 1) / 2, send_messages, receive_messages});
}
