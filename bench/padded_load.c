/* Load in padded: one TCP publisher that waits for acknowledgements, with a window. Nobody is subscribed.
 *
 *   Publish 64 · title 64 · length 64 · message     publish; the fields are padded with spaces
 *   PubAck 64                                       its acknowledgement
 *
 * Messages that leave together share a write. */
#define _GNU_SOURCE
#include "load.h"

#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

enum { FIELD = 64, MAX_FRAME = 3 * FIELD + MAX_SIZE, FRAMES = 128 };

static const char ACK[] = "PubAck ";
static const char ABOUT[] = "padded: acknowledged publishes over TCP, with a window.";
static long window = 20;
static const struct setting SETTINGS[] = {
    {"window", &window, 1, 10000, "messages without their acknowledgement at most"},
    {0},
};

static int publisher;
static char frames[FRAMES * MAX_FRAME];
static size_t frame_length;

static void send_messages(long count)
{
    while (count) {
        long together = count < FRAMES ? count : FRAMES;
        send_whole(publisher, frames, together * frame_length);
        count -= together;
    }
}

static long receive_acks(long wait_us)
{
    static char replies[FRAMES * FIELD];
    static size_t held; /* bytes of a reply that is not all here */
    if (!readable(publisher, wait_us))
        return 0;
    ssize_t length = recv(publisher, replies + held, sizeof replies - held, MSG_DONTWAIT);
    if (length <= 0)
        fail("the server closed the connection");
    long count = (held + length) / FIELD;
    held = (held + length) % FIELD;
    for (long i = 0; i < count; i++)
        if (memcmp(replies + i * FIELD, ACK, sizeof ACK - 1))
            fail("not an acknowledgement: %.*s", FIELD, replies + i * FIELD);
    memmove(replies, replies + count * FIELD, held);
    return count;
}

int main(int words, char **word)
{
    read_settings(words, word, ABOUT, SETTINGS);
    publisher = connected(SOCK_STREAM);
    char head[3 * FIELD + 1];
    snprintf(head, sizeof head, "%-64s%-64s%-64ld", "Publish", "bench/load", size);
    frame_length = 3 * FIELD + size;
    for (int i = 0; i < FRAMES; i++) {
        memcpy(frames + i * frame_length, head, 3 * FIELD);
        memset(frames + i * frame_length + 3 * FIELD, 'x', size);
    }
    return run(&(struct load){1, window, 1, send_messages, receive_acks});
}
