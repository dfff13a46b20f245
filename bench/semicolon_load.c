/* Load in semicolon: one UDP publisher, n UDP subscribers of the same topic, and idle subscriptions.
 *
 *   s · topic            subscribe          p · topic · ; · message     publish
 *   topic · ; · message  what a subscriber gets
 *
 * Plain datagrams both ways, as ordinary clients send and receive them. Subscriptions are not
 * acknowledged: each is made sure of by an empty message to its topic, which must come back. */
#define _GNU_SOURCE
#include "load.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

enum { MAX_DATAGRAM = 508, GROUP = 32, ATTEMPTS = 10, PROBE_MS = 200, READY = 128 };

static const char TOPIC[] = "bench/load";
static const char ABOUT[] = "semicolon: 1 publisher, n subscribers over UDP, with a window.";
static long subscribers = 1, window = 200, idle = 0;
static const struct setting SETTINGS[] = {
    {"subscribers", &subscribers, 1, 10000, "sockets that get every message"},
    {"window", &window, 1, 10000, "messages under way at most"},
    {"idle", &idle, 0, 60000, "further sockets, each with a topic of its own that gets nothing"},
    {0},
};

static int publisher, subscribed;
static int *receivers;
static char message[MAX_DATAGRAM];
static size_t message_length;

/* `s` or `p` with the topic: the common one, or an idle subscriber's own. */
static void send_command(int fd, char command, long own_topic, const char *end)
{
    char text[MAX_DATAGRAM];
    int length = own_topic < 0 ? snprintf(text, sizeof text, "%c%s%s", command, TOPIC, end)
                               : snprintf(text, sizeof text, "%cbench/idle/%ld%s", command, own_topic, end);
    send_whole(fd, text, length);
}

/* One attempt for those not yet sure; returns how many remain so. */
static int subscribe_group(const int *fds, bool *sure, int count, long first_topic)
{
    int unsure = 0;
    for (int i = 0; i < count; i++)
        if (!sure[i])
            send_command(fds[i], 's', first_topic < 0 ? -1 : first_topic + i, "");
    for (int i = 0; i < count; i++)
        if (!sure[i])
            send_command(fds[i], 'p', first_topic < 0 ? -1 : first_topic + i, ";");
    for (int i = 0; i < count; i++) {
        sure[i] = sure[i] || readable(fds[i], PROBE_MS * 1000L);
        unsure += !sure[i];
    }
    return unsure;
}

static int *subscribe_all(long count, bool own_topics)
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
            unsure = subscribe_group(fds + first, sure, members, own_topics ? first : -1);
        if (unsure)
            fail("%d of the subscribers %ld to %ld get nothing", unsure, first, first + members - 1);
    }
    return fds;
}

static void send_messages(long count)
{
    send_copies(publisher, message, message_length, count);
}

static long receive_burst(int fd)
{
    static char bytes[BURST][MAX_DATAGRAM];
    struct iovec parts[BURST];
    struct mmsghdr burst[BURST];
    for (int i = 0; i < BURST; i++) {
        parts[i] = (struct iovec){bytes[i], MAX_DATAGRAM};
        burst[i] = (struct mmsghdr){.msg_hdr = {.msg_iov = &parts[i], .msg_iovlen = 1}};
    }
    long messages = 0;
    int count = recvmmsg(fd, burst, BURST, MSG_DONTWAIT, NULL);
    for (int i = 0; i < count; i++)
        messages += burst[i].msg_len == message_length - 1; /* without the `p`; a late probe is shorter */
    return messages;
}

static long receive_messages(long wait_us)
{
    long ready[READY], messages = 0;
    int count = watched(subscribed, ready, READY, wait_us);
    for (int i = 0; i < count; i++)
        messages += receive_burst(receivers[ready[i]]);
    return messages;
}

int main(int words, char **word)
{
    read_settings(words, word, ABOUT, SETTINGS);
    allow_sockets(subscribers + idle);
    publisher = connected(SOCK_DGRAM);
    subscribed = watcher();
    subscribe_all(idle, true);
    receivers = subscribe_all(subscribers, false);
    for (long i = 0; i < subscribers; i++) {
        discard(receivers[i]);
        watch(subscribed, receivers[i], i);
    }
    message_length = snprintf(message, sizeof message, "p%s;", TOPIC);
    memset(message + message_length, 'x', size);
    message_length += size;
    return run(&(struct load){subscribers, window, (window + 1) / 2, send_messages, receive_messages});
}
