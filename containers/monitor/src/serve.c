#include "monitor.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

static struct client {
	int fd; /* -1: free */
	bool attached, status, input;
	int64_t stalled_since;
	size_t pending; /* bytes of its packet that the client has not taken yet */
} clients[MAX_CLIENTS];

/* Apart from the clients: only what a client leaves pending takes memory. There is a monitor
 * for every container. */
static char packets[MAX_CLIENTS][1 + CHUNK];

static char *packet_of(const struct client *c)
{
	return packets[c - clients];
}

/* The directory is the working directory: a socket path holds only 107 bytes. */
int serve_open(void)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX, .sun_path = "monitor.sock" };
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	for (int i = 0; i < MAX_CLIENTS; i++)
		clients[i].fd = -1;
	if (fd < 0)
		return -1;
	unlink(a.sun_path);
	if (bind(fd, (struct sockaddr *)&a, sizeof a) < 0 || listen(fd, 128) < 0) {
		close(fd);
		return -1;
	}
	return fd;
}

static struct client *free_client(void)
{
	for (int i = 0; i < MAX_CLIENTS; i++)
		if (clients[i].fd < 0)
			return &clients[i];
	return NULL;
}

/* Without room, connections wait in the backlog for others to end. */
bool serve_room(void)
{
	return free_client() != NULL;
}

void serve_accept(void)
{
	struct client *c = free_client();

	if (!c)
		return;
	c->fd = accept4(S.listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
	c->attached = c->status = c->input = false;
	c->pending = 0;
}

static int attached(void)
{
	int n = 0;

	for (int i = 0; i < MAX_CLIENTS; i++)
		n += clients[i].fd >= 0 && clients[i].attached;
	return n;
}

static void drop(struct client *c)
{
	bool input = c->input;

	close(c->fd);
	c->fd = -1;
	c->pending = 0;
	if (input)
		input_end();
}

/* Keeps the packet when the client does not take it now; reading of the
 * container's output pauses until it has. n is at most CHUNK. */
static void send_packet(struct client *c, uint8_t type, const char *data, size_t n)
{
	struct iovec iov[2] = { { &type, 1 }, { (void *)data, n } };
	struct msghdr m = { .msg_iov = iov, .msg_iovlen = 2 };

	if (c->fd < 0 || c->pending)
		return;
	if (sendmsg(c->fd, &m, MSG_NOSIGNAL) >= 0)
		return;
	if (errno == EAGAIN || errno == ENOBUFS || errno == EINTR) {
		packet_of(c)[0] = (char)type;
		memcpy(packet_of(c) + 1, data, n);
		c->pending = n + 1;
		c->stalled_since = now_ms();
		return;
	}
	drop(c);
}

bool serve_stalled(void)
{
	int64_t now = now_ms();
	bool any = false;

	for (int i = 0; i < MAX_CLIENTS; i++) {
		struct client *c = &clients[i];

		if (c->fd < 0 || !c->pending)
			continue;
		if (now - c->stalled_since > STALL_MS)
			drop(c);
		else
			any = true;
	}
	return any;
}

void serve_output(uint8_t type, const char *data, size_t n)
{
	for (int i = 0; i < MAX_CLIENTS; i++)
		if (clients[i].fd >= 0 && clients[i].attached)
			send_packet(&clients[i], type, data, n);
}

void serve_exit(const char *text, size_t n)
{
	for (int i = 0; i < MAX_CLIENTS; i++)
		if (clients[i].fd >= 0 && clients[i].status)
			send_packet(&clients[i], RSP_EXIT, text, n);
}

static void ack(struct client *c, int error)
{
	int32_t e = error;

	send_packet(c, RSP_ACK, (const char *)&e, sizeof e);
}

static void handle(struct client *c, const char *m, size_t n)
{
	const char *arg = m + 1;
	size_t len = n - 1;
	int32_t v[2];
	uint16_t rc[2];
	int fd;

	switch (m[0]) {
	case REQ_STATUS:
		c->status = true;
		v[0] = MONITOR_PROTOCOL;
		v[1] = S.init;
		send_packet(c, RSP_STATUS, (const char *)v, sizeof v);
		return;
	case REQ_KILL:
		if (len != sizeof v[0]) {
			ack(c, EINVAL);
			return;
		}
		memcpy(v, arg, sizeof v[0]);
		/* Safe: we alone reap it, so the pid cannot be another's. */
		ack(c, !S.init ? ESRCH : kill(S.init, v[0]) < 0 ? errno : 0);
		return;
	case REQ_REOPEN:
		fd = log_open(S.opt->log);
		if (fd < 0) {
			ack(c, *S.opt->log ? errno : 0);
			return;
		}
		if (S.log_fd >= 0)
			close(S.log_fd);
		S.log_fd = fd;
		ack(c, 0);
		return;
	case REQ_ATTACH:
		/* They stay long; a signal must always get through. */
		if (attached() >= MAX_ATTACHED) {
			ack(c, EBUSY);
			return;
		}
		c->attached = true;
		ack(c, 0);
		return;
	case REQ_STDIN:
		c->input = true;
		input_put(arg, len);
		return;
	case REQ_CLOSE:
		c->input = false;
		input_end();
		return;
	case REQ_RESIZE:
		if (len != sizeof rc) {
			ack(c, EINVAL);
			return;
		}
		memcpy(rc, arg, sizeof rc);
		ack(c, input_resize(rc[0], rc[1]));
		return;
	default:
		ack(c, ENOSYS);
	}
}

/* One entry per client, in order, so that serve_ready finds them again. */
size_t serve_poll(struct pollfd *p)
{
	for (int i = 0; i < MAX_CLIENTS; i++) {
		struct client *c = &clients[i];

		p[i].fd = c->fd;
		p[i].events = 0;
		p[i].revents = 0;
		if (c->pending)
			p[i].events = POLLOUT;
		else if (!S.in_len || !c->input)
			p[i].events = POLLIN;
	}
	return MAX_CLIENTS;
}

void serve_ready(const struct pollfd *p, size_t n)
{
	static char buf[1 + CHUNK];

	for (size_t i = 0; i < n; i++) {
		struct client *c = &clients[i];
		ssize_t r;

		if (c->fd < 0 || c->fd != p[i].fd || !p[i].revents)
			continue;
		if (c->pending && (p[i].revents & POLLOUT)) {
			if (send(c->fd, packet_of(c), c->pending, MSG_NOSIGNAL) >= 0)
				c->pending = 0;
			else if (errno != EAGAIN && errno != ENOBUFS)
				drop(c);
			continue;
		}
		if (p[i].revents & POLLIN) {
			/* A first packet of input may arrive while other input waits. */
			r = recv(c->fd, buf, sizeof buf, S.in_len ? MSG_PEEK : 0);
			if (r > 0 && S.in_len) {
				if (buf[0] == REQ_STDIN) {
					c->input = true;
					continue;
				}
				r = recv(c->fd, buf, sizeof buf, 0);
			}
			if (r > 0) {
				handle(c, buf, (size_t)r);
				continue;
			}
			if (r < 0 && (errno == EAGAIN || errno == EINTR))
				continue;
			drop(c);
			continue;
		}
		if (p[i].revents & (POLLERR | POLLHUP | POLLNVAL))
			drop(c);
	}
}
