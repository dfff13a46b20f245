/* Load in MQTT 3.1.1: n publishers, m subscribers, QoS 0, 1 or 2, and subscriptions that get nothing.
 *
 *   fan-out (the default)   every subscriber gets every message
 *   pairs=1                 publisher i to subscriber i, each pair with a topic of its own
 *
 * An answer is a delivery; without subscribers it is the acknowledgement. Messages that leave together share a write, unless `single`.
 * Deliveries are acknowledged as their QoS asks. */
#define _GNU_SOURCE
#include "load.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

enum { CONNACK = 2, PUBLISH = 3, PUBACK = 4, PUBREC = 5, PUBREL = 6, PUBCOMP = 7, SUBACK = 9 };
enum { TOPIC = 11, ROOM = 1 << 18, OUT = 1 << 16, FILTERS = 500, EACH = 10000, ANSWER_US = 30000000 };

static const char ABOUT[] = "MQTT 3.1.1: publishers, subscribers and idle subscriptions over TCP, with a window.";
static long publishers = 1, subscribers = 1, pairs = 0, topics = 1, qos = 0, window = 10000, exact = 0, wild = 0;
static const struct setting SETTINGS[] = {
    {"publishers", &publishers, 1, 1000, "connections that publish, in turn"},
    {"subscribers", &subscribers, 0, 10000, "connections that get messages; 0: acknowledgements are the answers"},
    {"pairs", &pairs, 0, 1, "1: each subscriber gets the messages of one publisher"},
    {"topics", &topics, 1, 99999, "that are published to in turn"},
    {"qos", &qos, 0, 2, "of publishers and subscribers"},
    {"window", &window, 1, 100000, "messages under way at most"},
    {"exact", &exact, 0, 1000000, "further subscriptions to topics that get nothing"},
    {"wild", &wild, 0, 1000000, "further subscriptions with wildcards that get nothing"},
    {"size", &size, 1, MAX_LARGE, "payload bytes; at least 16 with a rate"},
    {0},
};

static struct stream *publishing, *receiving;
static int watching;
static char *frame; /* a publish; topic, id and payload change */
static size_t frame_length, topic_at, payload_at;
static long next_message, acknowledged;
static unsigned short next_id = 1;

/* --- packets ------------------------------------------------------------ */

static size_t put_length(char *to, size_t length)
{
    size_t place = 0;
    do {
        to[place++] = (length & 127) | (length > 127 ? 128 : 0);
        length >>= 7;
    } while (length);
    return place;
}

static size_t put_text(char *to, const char *text)
{
    size_t length = strlen(text);
    to[0] = length >> 8;
    to[1] = length;
    memcpy(to + 2, text, length);
    return length + 2;
}

static void send_packet(int fd, int first, const char *body, size_t length)
{
    char head[5];
    head[0] = first;
    send(fd, head, 1 + put_length(head + 1, length), MSG_MORE | MSG_NOSIGNAL);
    send_whole(fd, body, length);
}

/* Replies to what was read together leave together. */
static char replies[4 * MAX_LARGE]; /* as many bytes as can be held */
static size_t reply_bytes;

static void reply(int first, const char *id)
{
    memcpy(replies + reply_bytes, (char[]){first, 2, id[0], id[1]}, 4);
    reply_bytes += 4;
}

/* The length of the first packet and where its body begins; 0 if it is not all here. */
static size_t packet(const char *bytes, size_t held, size_t *body)
{
    size_t length = 0;
    for (size_t place = 1; place < held && place < 5; place++) {
        length |= (size_t)(bytes[place] & 127) << (7 * (place - 1));
        if (!(bytes[place] & 128)) {
            *body = place + 1;
            return held >= place + 1 + length ? place + 1 + length : 0;
        }
    }
    return 0;
}

/* Waits for one packet of that kind, and nothing else. */
static void expect(struct stream *stream, int kind)
{
    size_t body, length;
    while (!(length = packet(stream->bytes, stream->held, &body))) {
        if (!readable(stream->fd, ANSWER_US))
            fail("no answer of kind %d", kind);
        read_more(stream);
    }
    if ((stream->bytes[0] >> 4 & 15) != kind || (kind == CONNACK && stream->bytes[3]))
        fail("refused: wanted a packet of kind %d, got %d", kind, stream->bytes[0] >> 4 & 15);
    used(stream, length);
}

/* --- connections -------------------------------------------------------- */

static struct stream connection(const char *kind, long number, size_t room)
{
    struct stream made = opened(room);
    char body[64] = {0, 4, 'M', 'Q', 'T', 'T', 4, 2, 0, 0}, name[32];
    snprintf(name, sizeof name, "%s%ld", kind, number);
    send_packet(made.fd, 0x10, body, 10 + put_text(body + 10, name));
    expect(&made, CONNACK);
    return made;
}

static void subscribe(struct stream *stream, const char *form, long first, long count)
{
    static char body[2 + FILTERS * 40];
    char filter[32];
    size_t length = 2;
    body[1] = 1;
    for (long i = first; i < first + count; i++) {
        snprintf(filter, sizeof filter, form, i);
        length += put_text(body + length, filter);
        body[length++] = qos;
    }
    send_packet(stream->fd, 0x82, body, length);
    expect(stream, SUBACK);
}

/* Subscriptions that nothing is published to, so many on a connection; the connections stay. */
static void subscribe_idle(const char *kind, const char *form, long count)
{
    for (long first = 0; first < count; first += EACH) {
        struct stream one = connection(kind, first, 1 << 16);
        long end = first + EACH < count ? first + EACH : count;
        for (long from = first; from < end; from += FILTERS)
            subscribe(&one, form, from, from + FILTERS < end ? FILTERS : end - from);
    }
}

/* --- messages ----------------------------------------------------------- */

static void make_frame(void)
{
    frame = malloc(size + 32);
    if (!frame)
        fail("out of memory");
    frame[0] = PUBLISH << 4 | qos << 1;
    topic_at = 1 + put_length(frame + 1, 2 + TOPIC + (qos ? 2 : 0) + size) + 2;
    put_text(frame + topic_at - 2, "bench/00000");
    payload_at = topic_at + TOPIC + (qos ? 2 : 0);
    frame_length = payload_at + size;
}

static void finish(char *made, long topic)
{
    for (int place = TOPIC - 1; place >= TOPIC - 5; place--, topic /= 10)
        made[topic_at + place] = '0' + topic % 10;
    if (qos) {
        made[topic_at + TOPIC] = next_id >> 8;
        made[topic_at + TOPIC + 1] = next_id;
        next_id = next_id == 65535 ? 1 : next_id + 1;
    }
    if (rate)
        stamp(made + payload_at);
}

static void send_by(long publisher, long count)
{
    static char out[OUT + MAX_LARGE + 64];
    size_t length = 0;
    for (long i = 0; i < count; i++) {
        memcpy(out + length, frame, payload_at);
        memcpy(out + length + payload_at, payload(), size);
        finish(out + length, pairs ? publisher : next_message++ % topics);
        length += frame_length;
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

/* --- answers ------------------------------------------------------------ */

static long delivered(const char *bytes, size_t body)
{
    int how = bytes[0] >> 1 & 3;
    if (rate)
        took(bytes + body + 2 + TOPIC + (how ? 2 : 0));
    if (how)
        reply((how == 1 ? PUBACK : PUBREC) << 4, bytes + body + 2 + TOPIC);
    return 1;
}

/* All whole packets that are here; how many deliveries. */
static long take(struct stream *stream)
{
    size_t place = 0, body, length;
    long count = 0;
    while ((length = packet(stream->bytes + place, stream->held - place, &body))) {
        const char *bytes = stream->bytes + place;
        switch (bytes[0] >> 4 & 15) {
        case PUBLISH: count += delivered(bytes, body); break;
        case PUBACK: case PUBCOMP: acknowledged++; break;
        case PUBREC: reply(PUBREL << 4 | 2, bytes + 2); break;
        case PUBREL: reply(PUBCOMP << 4, bytes + 2); break;
        default: fail("an unexpected packet: %d", bytes[0] >> 4 & 15);
        }
        place += length;
    }
    used(stream, place);
    send_whole(stream->fd, replies, reply_bytes);
    reply_bytes = 0;
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

int main(int words, char **word)
{
    read_settings(words, word, ABOUT, SETTINGS);
    if (rate && size < STAMP)
        fail("with a rate size must be at least %d", STAMP);
    if (pairs && subscribers != publishers)
        fail("pairs need as many subscribers as publishers");
    allow_sockets(publishers + subscribers + (exact + wild) / EACH + 2);
    make_frame();
    subscribe_idle("exact", "idle/%07ld", exact);
    subscribe_idle("wild", "idle/+/%07ld/#", wild);
    publishing = calloc(publishers, sizeof *publishing);
    receiving = calloc(subscribers + 1, sizeof *receiving);
    watching = watcher();
    size_t room = ROOM > 2 * size ? ROOM : 4 * size;
    for (long i = 0; i < subscribers; i++) {
        receiving[i] = connection("to", i, room);
        subscribe(receiving + i, pairs ? "bench/%05ld" : topics > 1 ? "bench/#" : "bench/00000", i, 1);
        watch(watching, receiving[i].fd, publishers + i);
    }
    for (long i = 0; i < publishers; i++) {
        publishing[i] = connection("from", i, 1 << 16);
        watch(watching, publishing[i].fd, i);
    }
    long answers = !subscribers ? qos > 0 : pairs ? 1 : subscribers;
    return run(&(struct load){answers, window, rate ? 1 : (window + 3) / 4, send_messages, receive});
}
