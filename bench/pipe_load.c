/* Load in pipe: one UDP publisher that waits for acknowledgements, with a window. Nobody is subscribed.
 *
 *   P|topic|message     publish          Hello Publisher!     its acknowledgement; anything else is a refusal */
#define _GNU_SOURCE
#include "load.h"

#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

enum { MAX_REPLY = 512 };

static const char ACK[] = "Hello Publisher!";
static const char ABOUT[] = "pipe: acknowledged publishes over UDP, with a window.";
static long window = 20;
static const struct setting SETTINGS[] = {
    {"window", &window, 1, 10000, "messages without their acknowledgement at most"},
    {0},
};

static int publisher;
static const char BEGINNING[] = "P|bench/load|";

static void send_messages(long count)
{
    send_datagrams(publisher, BEGINNING, sizeof BEGINNING - 1, count);
}

static long receive_acks(long wait_us)
{
    static char replies[BURST][MAX_REPLY];
    struct iovec parts[BURST];
    struct mmsghdr burst[BURST];
    if (!readable(publisher, wait_us))
        return 0;
    for (int i = 0; i < BURST; i++) {
        parts[i] = (struct iovec){replies[i], MAX_REPLY};
        burst[i] = (struct mmsghdr){.msg_hdr = {.msg_iov = &parts[i], .msg_iovlen = 1}};
    }
    int count = recvmmsg(publisher, burst, BURST, MSG_DONTWAIT, NULL);
    if (count < 0)
        fail("the server does not listen any more");
    for (int i = 0; i < count; i++)
        if (burst[i].msg_len != sizeof ACK - 1 || memcmp(replies[i], ACK, sizeof ACK - 1))
            fail("refused: %.*s", (int)burst[i].msg_len, replies[i]);
    return count;
}

int main(int words, char **word)
{
    read_settings(words, word, ABOUT, SETTINGS);
    publisher = connected(SOCK_DGRAM);
    return run(&(struct load){1, window, 1, send_messages, receive_acks});
}
