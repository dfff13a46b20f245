/* Load in padded: n TCP publishers and m subscribers, or publishers alone that wait for acknowledgements.
 *
 *   Publish 64 · title 64 · length 64 · message     publish; the fields are padded with spaces
 *   PubAck 64                                       its acknowledgement
 *   Subscribe 64 · title 64                         subscribe
 *   SubAck 64                                       its acknowledgement; what is stored follows, and is not counted
 *   Message 64 · title 64 · length 64 · message     what a subscriber gets
 *   Ping 64                                         to be answered by Pong 64
 *
 *   fan-out (the default)   every subscriber gets every message
 *   pairs=1                 publisher i to subscriber i, each pair with a title of its own
 *
 * An answer is a delivery; without subscribers it is the acknowledgement. Messages that leave together share a
 * write. */
#define _GNU_SOURCE
#include "load.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

enum { FIELD = 64, HEAD = 3 * FIELD, FRAMES = 128, ROOM = 1 << 18 };
enum { ANSWER_US = 30000000, QUIET_US = 100000 };

static const char TITLE[] = "bench/load", PAIR[] = "bench/load/%05ld";
static const char ABOUT[] = "padded: publishers and subscribers over TCP, with a window.";
static long publishers = 1, subscribers = 0, pairs = 0, window = 20;
static const struct setting SETTINGS[] = {
    {"publishers", &publishers, 1, 100, "connections that publish, in turn"},
    {"subscribers", &subscribers, 0, 10000, "connections that get messages; 0: acknowledgements are the answers"},
    {"pairs", &pairs, 0, 1, "1: each subscriber gets the messages of one publisher"},
    {"window", &window, 1, 10000, "messages under way at most"},
    {0},
};

static struct stream *publishing, *receiving;
static char **frames; /* of each publisher: so many alike, to leave by one write */
static size_t frame_length;
static int watching;
static long acknowledged;

static bool begins(const char *bytes, const char *word)
{
    return !memcmp(bytes, word, strlen(word));
}

/* --- messages ----------------------------------------------------------- */

static char *made_frames(const char *title)
{
    char head[HEAD + 1], *made = malloc(FRAMES * frame_length);
    if (!made)
        fail("out of memory");
    snprintf(head, sizeof head, "%-64s%-64s%-64ld", "Publish", title, size);
    for (int i = 0; i < FRAMES; i++) {
        memcpy(made + i * frame_length, head, HEAD);
        memcpy(made + i * frame_length + HEAD, payload(), size);
    }
    return made;
}

static void send_by(long publisher, long count)
{
    while (count) {
        long together = count < FRAMES ? count : FRAMES;
        send_whole(publishing[publisher].fd, frames[publisher], together * frame_length);
        count -= together;
    }
}

static void send_messages(long count)
{
    in_turn(publishers, count, send_by);
}

/* --- answers ------------------------------------------------------------ */

/* The length of what begins here; 0 if it is not all here. */
static size_t whole(const char *bytes, size_t held)
{
    if (held < FIELD || !begins(bytes, "Message "))
        return held < FIELD ? 0 : FIELD;
    if (held < HEAD)
        return 0;
    long length = strtol(bytes + 2 * FIELD, NULL, 10);
    if (length < 0 || length > ROOM - HEAD)
        fail("a message of %ld bytes is not the bench's", length);
    return held >= HEAD + (size_t)length ? HEAD + length : 0;
}

/* All that is here as a whole; how many deliveries. */
static long take(struct stream *stream)
{
    size_t place = 0, length;
    long count = 0;
    while ((length = whole(stream->bytes + place, stream->held - place))) {
        const char *bytes = stream->bytes + place;
        if (begins(bytes, "Message "))
            count++;
        else if (begins(bytes, "PubAck "))
            acknowledged++;
        else if (begins(bytes, "Ping ")) {
            char pong[FIELD + 1];
            send_whole(stream->fd, pong, snprintf(pong, sizeof pong, "%-64s", "Pong"));
        } else
            fail("unexpected: %.*s", FIELD, bytes);
        place += length;
    }
    used(stream, place);
    return count;
}

static struct stream *numbered(long number)
{
    return number < publishers ? publishing + number : receiving + (number - publishers);
}

static long receive(long wait_us)
{
    acknowledged = 0;
    long count = take_ready(watching, numbered, take, wait_us);
    return subscribers ? count : acknowledged;
}

/* --- subscribing -------------------------------------------------------- */

static void subscribe(struct stream *stream, const char *title)
{
    char text[2 * FIELD + 1];
    send_whole(stream->fd, text, snprintf(text, sizeof text, "%-64s%-64s", "Subscribe", title));
    while (stream->held < FIELD) {
        if (!readable(stream->fd, ANSWER_US))
            fail("a subscription is not acknowledged");
        read_more(stream);
    }
    if (!begins(stream->bytes, "SubAck "))
        fail("refused: %.*s", FIELD, stream->bytes);
    used(stream, FIELD);
}

int main(int words, char **word)
{
    char title[FIELD];
    read_settings(words, word, ABOUT, SETTINGS);
    if (pairs && subscribers != publishers)
        fail("pairs need as many subscribers as publishers");
    allow_sockets(publishers + subscribers);
    frame_length = HEAD + size;
    publishing = calloc(publishers, sizeof *publishing);
    receiving = calloc(subscribers + 1, sizeof *receiving);
    frames = calloc(publishers, sizeof *frames);
    if (!publishing || !receiving || !frames)
        fail("out of memory");
    watching = watcher();
    for (long i = 0; i < publishers; i++) {
        snprintf(title, sizeof title, pairs ? PAIR : TITLE, i);
        frames[i] = made_frames(title);
        publishing[i] = opened(ROOM);
        watch(watching, publishing[i].fd, i);
    }
    for (long i = 0; i < subscribers; i++) {
        snprintf(title, sizeof title, pairs ? PAIR : TITLE, i);
        receiving[i] = opened(ROOM);
        subscribe(receiving + i, title);
        watch(watching, receiving[i].fd, publishers + i);
    }
    while (subscribers && receive(QUIET_US)) /* what was stored */
        continue;
    long answers = pairs || !subscribers ? 1 : subscribers;
    return run(&(struct load){answers, window, subscribers ? (window + 1) / 2 : 1, send_messages, receive});
}
