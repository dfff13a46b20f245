/* The peer that SMB is compared with in semicolon: a relay as one would write it in C on a first day.
 * A list of subscriptions, gone through for every message; a system call for every datagram in and out;
 * exact topics only, nothing printed, nothing kept.
 *
 *   s · topic  subscribe     p · topic · ; · message  publish     u  end all of the sender's subscriptions */
#include <arpa/inet.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

enum { MAX_DATAGRAM = 508, MAX_TOPIC = 128, MOST = 65536, RECEIVE_BUFFER = 4 << 20 };

struct subscription {
    struct sockaddr_in from;
    int length;
    char topic[MAX_TOPIC];
};

static struct subscription list[MOST];
static int listed;

static bool is_from(const struct subscription *one, const struct sockaddr_in *from)
{
    return one->from.sin_port == from->sin_port && one->from.sin_addr.s_addr == from->sin_addr.s_addr;
}

static bool is_for(const struct subscription *one, const char *topic, int length)
{
    return one->length == length && memcmp(one->topic, topic, length) == 0;
}

static void subscribe(const struct sockaddr_in *from, const char *topic, int length)
{
    if (length < 1 || length > MAX_TOPIC || listed == MOST)
        return;
    for (int i = 0; i < listed; i++)
        if (is_from(&list[i], from) && is_for(&list[i], topic, length))
            return;
    list[listed] = (struct subscription){.from = *from, .length = length};
    memcpy(list[listed++].topic, topic, length);
}

static void publish(int fd, const char *text, int length)
{
    const char *semicolon = memchr(text, ';', length);
    for (int i = 0; semicolon && i < listed; i++)
        if (is_for(&list[i], text, semicolon - text))
            sendto(fd, text, length, 0, (const struct sockaddr *)&list[i].from, sizeof list[i].from);
}

static void unsubscribe(const struct sockaddr_in *from)
{
    for (int i = listed - 1; i >= 0; i--)
        if (is_from(&list[i], from))
            memmove(&list[i], &list[i + 1], (--listed - i) * sizeof *list);
}

int main(int words, char **word)
{
    int port = words == 2 ? atoi(word[1]) : 0, buffer = RECEIVE_BUFFER;
    struct sockaddr_in here = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    int fd = socket(AF_INET, SOCK_DGRAM, 0);
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &buffer, sizeof buffer);
    if (port < 1 || bind(fd, (struct sockaddr *)&here, sizeof here)) {
        fputs("usage: plain_relay PORT (a free one)\n", stderr);
        return 1;
    }
    for (;;) {
        char datagram[MAX_DATAGRAM + 1];
        struct sockaddr_in from;
        socklen_t from_size = sizeof from;
        int length = recvfrom(fd, datagram, sizeof datagram, 0, (struct sockaddr *)&from, &from_size);
        if (length < 1 || length > MAX_DATAGRAM)
            continue;
        if (datagram[0] == 's')
            subscribe(&from, datagram + 1, length - 1);
        else if (datagram[0] == 'p')
            publish(fd, datagram + 1, length - 1);
        else if (datagram[0] == 'u')
            unsubscribe(&from);
    }
}
