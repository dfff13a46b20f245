/* Load in typed: one UDP publisher, n TCP subscribers of the same topic.
 *
 *   topic 50 · type 1 · content                               publish (UDP); type 3 is STRING
 *   id 11, then s · topic 50 · sf 1 · NUL                     subscribe (TCP)
 *   topic 50 · type 1 · content 1,500 · IP 16 · port 2 · \r   what a subscriber gets: always 1,570 bytes
 *
 * Subscriptions are not acknowledged: probes are published until each subscriber has got one. */
#define _GNU_SOURCE
#include "load.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

enum { TOPIC = 50, STRING = 3, IDENTITY = 11, SUBSCRIBE = 53, FRAME = 1570, ATTEMPTS = 50, PROBE_MS = 100, READY = 128 };

static const char NAME[TOPIC] = "bench/load"; /* and NULs */
static const char ABOUT[] = "typed: 1 publisher over UDP, n subscribers over TCP, with a window.";
static long subscribers = 1, window = 200;
static const struct setting SETTINGS[] = {
    {"subscribers", &subscribers, 1, 10000, "connections that get every message"},
    {"window", &window, 1, 10000, "messages under way at most"},
    {0},
};

struct subscriber {
    int fd;
    long pending; /* bytes of a frame that is not all here */
};

static int publisher, subscribed;
static struct subscriber *receivers;
static char message[TOPIC + 1 + MAX_SIZE];

static void send_messages(long count)
{
    send_copies(publisher, message, TOPIC + 1 + size, count);
}

static long receive_frames(struct subscriber *one)
{
    static char bytes[256 * FRAME];
    ssize_t length = recv(one->fd, bytes, sizeof bytes, MSG_DONTWAIT);
    if (length < 0 && errno == EAGAIN)
        return 0;
    if (length <= 0)
        fail("the server closed the connection of a subscriber");
    if (!one->pending && length >= TOPIC && memcmp(bytes, NAME, TOPIC))
        fail("what a subscriber got does not begin with the topic");
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
    memcpy(command + 1, NAME, TOPIC);
    one->fd = connected(SOCK_STREAM);
    send_whole(one->fd, identity, sizeof identity);
    send_whole(one->fd, command, sizeof command);
}

/* Publishes until this one has got something. */
static void make_sure(const struct subscriber *one)
{
    for (int attempt = 0; attempt < ATTEMPTS; attempt++) {
        send_messages(1);
        if (readable(one->fd, PROBE_MS * 1000L))
            return;
    }
    fail("a subscriber gets nothing");
}

int main(int words, char **word)
{
    read_settings(words, word, ABOUT, SETTINGS);
    allow_sockets(subscribers);
    memcpy(message, NAME, TOPIC);
    message[TOPIC] = STRING;
    memset(message + TOPIC + 1, 'x', size);
    publisher = connected(SOCK_DGRAM);
    subscribed = watcher();
    receivers = calloc(subscribers, sizeof *receivers);
    if (!receivers)
        fail("out of memory");
    for (long i = 0; i < subscribers; i++) {
        subscribe(&receivers[i], i);
        watch(subscribed, receivers[i].fd, i);
    }
    for (long i = 0; i < subscribers; i++)
        make_sure(&receivers[i]);
    while (receive_messages(PROBE_MS * 1000L)) /* the other probes */
        continue;
    return run(&(struct load){subscribers, window, (window + 1) / 2, send_messages, receive_messages});
}
