/* Load in NATS's own protocol: n publishers, m subscribers, as mqtt_load's.
 *
 *   SUB subject id · PUB subject size · payload      what we send; lines end with \r\n
 *   MSG subject id size · payload                    what a subscriber gets
 *
 * Every message has the same length, so what a subscriber gets is counted by its bytes. */
#define _GNU_SOURCE
#include "load.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

enum { ROOM = 1 << 18, OUT = 1 << 16, HEAD = 64, PING = 6, ANSWER_US = 10000000 };

static const char ABOUT[] = "NATS: publishers and subscribers over TCP, with a window.";
static long publishers = 1, subscribers = 1, pairs = 0, window = 10000;
static const struct setting SETTINGS[] = {
    {"publishers", &publishers, 1, 1000, "connections that publish, in turn"},
    {"subscribers", &subscribers, 1, 10000, "connections that get messages"},
    {"pairs", &pairs, 0, 1, "1: each subscriber gets the messages of one publisher"},
    {"window", &window, 1, 100000, "messages under way at most"},
    {"size", &size, 1, MAX_LARGE, "payload bytes; at least 16 with a rate"},
    {0},
};

static struct stream *publishing, *receiving;
static int watching;
static size_t delivery; /* bytes of one */

/* What it says is told by a line that ends with that word; all before it is forgotten. */
static void expect(struct stream *stream, const char *word)
{
    char *end;
    stream->bytes[stream->held] = 0;
    while (!(end = strstr(stream->bytes, word))) {
        if (!readable(stream->fd, ANSWER_US))
            fail("no %s", word);
        read_more(stream);
        stream->bytes[stream->held] = 0;
    }
    used(stream, end - stream->bytes + strlen(word));
}

static struct stream connection(size_t room)
{
    static const char HELLO[] = "CONNECT {\"verbose\":false,\"pedantic\":false}\r\nPING\r\n";
    struct stream made = opened(room + 1);
    made.room = room;
    send_whole(made.fd, HELLO, sizeof HELLO - 1);
    expect(&made, "PONG\r\n");
    return made;
}

static void send_by(long publisher, long count)
{
    static char out[OUT + MAX_LARGE + HEAD];
    size_t length = 0;
    for (long i = 0; i < count; i++) {
        length += snprintf(out + length, HEAD, "PUB bench.%05ld %ld\r\n", pairs ? publisher : 0, size);
        memcpy(out + length, payload(), size);
        if (rate)
            stamp(out + length);
        memcpy(out + length + size, "\r\n", 2);
        length += size + 2;
        if (length >= OUT || single) {
            send_whole(publishing[publisher].fd, out, length);
            length = 0;
        }
    }
    send_whole(publishing[publisher].fd, out, length);
}

static void send_messages(long count)
{
    in_turn(publishers, count, send_by);
}

/* Between messages the server may ask whether the client is alive. */
static long take(struct stream *stream)
{
    long count = 0;
    size_t at = 0;
    while (stream->held - at >= PING) {
        const char *next = stream->bytes + at;
        if (!memcmp(next, "PING\r\n", PING)) {
            send_whole(stream->fd, "PONG\r\n", PING);
            at += PING;
            continue;
        }
        if (memcmp(next, "MSG ", 4))
            fail("not a message: %.20s", next);
        if (stream->held - at < delivery)
            break;
        at += delivery;
        count++;
        if (rate)
            took(stream->bytes + at - size - 2);
    }
    used(stream, at);
    return count;
}

static struct stream *numbered(long number)
{
    return receiving + number;
}

static long receive(long wait_us)
{
    return take_ready(watching, numbered, take, wait_us);
}

int main(int words, char **word)
{
    char text[HEAD];
    read_settings(words, word, ABOUT, SETTINGS);
    if (rate && size < STAMP)
        fail("with a rate size must be at least %d", STAMP);
    if (pairs && subscribers != publishers)
        fail("pairs need as many subscribers as publishers");
    allow_sockets(publishers + subscribers);
    delivery = snprintf(text, sizeof text, "MSG bench.%05d 1 %ld\r\n", 0, size) + size + 2;
    publishing = calloc(publishers, sizeof *publishing);
    receiving = calloc(subscribers, sizeof *receiving);
    watching = watcher();
    for (long i = 0; i < subscribers; i++) {
        receiving[i] = connection(ROOM > 2 * size ? ROOM : 4 * size);
        int length = snprintf(text, sizeof text, "SUB bench.%05ld 1\r\nPING\r\n", pairs ? i : 0);
        send_whole(receiving[i].fd, text, length);
        expect(receiving + i, "PONG\r\n");
        watch(watching, receiving[i].fd, i);
    }
    for (long i = 0; i < publishers; i++)
        publishing[i] = connection(1 << 16);
    return run(&(struct load){pairs ? 1 : subscribers, window, rate ? 1 : (window + 3) / 4, send_messages, receive});
}
