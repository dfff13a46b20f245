/* MQTT 3.1.1 over TLS: one publisher, some subscribers, QoS 0; prints one line of JSON.
 *
 *   tls_load PORT MESSAGES SIZE SUBSCRIBERS RECORD WINDOW
 *
 * The publisher writes RECORD bytes at a time (0: a record for each message), and is never more than WINDOW messages
 * ahead of the slowest subscriber, so that a server that drops what does not fit its queue drops nothing. Rates are
 * deliveries, from the first write to the last message read. The server's certificate is not checked. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <openssl/ssl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { MAX_SUBSCRIBERS = 64, BUFFER = 1 << 17, PATIENCE_S = 60 };

static long messages, size, subscribers, record, window;
static int port;
static size_t frame;
static SSL_CTX *context;
static atomic_long received[MAX_SUBSCRIBERS];

static void die(const char *what)
{
    fprintf(stderr, "%s\n", what);
    exit(2);
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

static void put(SSL *tls, const void *data, size_t length)
{
    if (SSL_write(tls, data, length) != (int)length)
        die("write failed");
}

static void answer(SSL *tls, size_t length, uint8_t first)
{
    uint8_t got[8];
    for (size_t have = 0; have < length;) {
        int more = SSL_read(tls, got + have, length - have);
        if (more <= 0)
            die("no answer");
        have += more;
    }
    if (got[0] != first || got[length - 1] > 2)
        die("refused");
}

static SSL *opened(int index)
{
    int fd = socket(AF_INET, SOCK_STREAM, 0), on = 1;
    struct timeval patience = {.tv_sec = PATIENCE_S};
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    if (connect(fd, (struct sockaddr *)&to, sizeof to))
        die("cannot connect");
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    SSL *tls = SSL_new(context);
    SSL_set_fd(tls, fd);
    if (SSL_connect(tls) != 1)
        die("handshake failed");
    uint8_t hello[] = {0x10, 15, 0, 4, 'M', 'Q', 'T', 'T', 4, 2, 0, 0, 0, 3, 't', '0' + index / 10, '0' + index % 10};
    put(tls, hello, sizeof hello);
    answer(tls, 4, 0x20);
    return tls;
}

static void *reader(void *argument)
{
    long index = (long)argument;
    SSL *tls = opened(index + 1);
    const uint8_t subscribe[] = {0x82, 6, 0, 1, 0, 1, '#', 0};
    put(tls, subscribe, sizeof subscribe);
    answer(tls, 5, 0x90);
    atomic_store(&received[index], 0);
    uint8_t *buffer = malloc(BUFFER);
    for (size_t bytes = 0; bytes < frame * messages;) {
        int more = SSL_read(tls, buffer, BUFFER);
        if (more <= 0)
            die("a subscriber was cut off, or something is missing");
        bytes += more;
        atomic_store_explicit(&received[index], bytes / frame, memory_order_relaxed);
    }
    return tls;
}

static long slowest(void)
{
    long least = messages;
    for (long i = 0; i < subscribers; i++) {
        long one = atomic_load_explicit(&received[i], memory_order_relaxed);
        least = one < least ? one : least;
    }
    return least;
}

int main(int count, char **words)
{
    if (count != 7)
        die("tls_load PORT MESSAGES SIZE SUBSCRIBERS RECORD WINDOW");
    port = atoi(words[1]), messages = atol(words[2]), size = atol(words[3]);
    subscribers = atol(words[4]), record = atol(words[5]), window = atol(words[6]);
    if (size < 1 || size > 120 || subscribers < 1 || subscribers > MAX_SUBSCRIBERS)
        die("SIZE is 1 to 120, SUBSCRIBERS 1 to 64");
    context = SSL_CTX_new(TLS_client_method());
    frame = 2 + 2 + 1 + size;
    pthread_t threads[MAX_SUBSCRIBERS];
    for (long i = 0; i < subscribers; i++) {
        atomic_store(&received[i], -1);
        pthread_create(&threads[i], NULL, reader, (void *)i);
    }
    SSL *tls = opened(0);
    while (slowest() < 0)
        usleep(1000);
    long batch = record > (long)frame ? record / (long)frame : 1;
    uint8_t *bytes = malloc(batch * frame);
    for (long i = 0; i < batch; i++) {
        uint8_t *at = bytes + i * frame;
        memcpy(at, (uint8_t[]){0x30, 3 + size, 0, 1, 'x'}, 5);
        memset(at + 5, 'm', size);
    }
    double start = now();
    for (long sent = 0; sent < messages;) {
        while (sent - slowest() > window)
            usleep(50);
        long some = messages - sent < batch ? messages - sent : batch;
        put(tls, bytes, some * frame);
        sent += some;
    }
    for (long i = 0; i < subscribers; i++)
        pthread_join(threads[i], NULL);
    double seconds = now() - start;
    printf("{\"deliveries_per_second\": %.0f, \"seconds\": %.3f, \"cipher\": \"%s %s\"}\n",
           messages * subscribers / seconds, seconds, SSL_get_version(tls), SSL_get_cipher(tls));
    return 0;
}
