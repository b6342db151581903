#include "monitor.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

/* Descriptors that the launcher expects. */
enum { LAUNCHER_CONTROL = 3, LAUNCHER_CONSOLE = 4, FIRST_FREE = 8 };

/* Out of the way of the launcher's low numbers. */
static int high(int fd)
{
	int h;

	if (fd < 0)
		return -1;
	h = fcntl(fd, F_DUPFD_CLOEXEC, FIRST_FREE);
	close(fd);
	return h;
}

static bool make_pipe(int p[2])
{
	if (pipe2(p, O_CLOEXEC) < 0)
		return false;
	p[0] = high(p[0]);
	p[1] = high(p[1]);
	return p[0] >= 0 && p[1] >= 0;
}

static void report(int fd, const char *text, size_t n)
{
	while (n > 0) {
		ssize_t w = write(fd, text, n);
		if (w < 0 && errno == EINTR)
			continue;
		if (w <= 0)
			return;
		text += w;
		n -= (size_t)w;
	}
}

static void fail(int fd, const char *what, int number)
{
	char buf[256];
	struct text t = { buf, 0, sizeof buf };

	text_str(&t, "{\"error\":\"monitor: ");
	text_str(&t, what);
	text_str(&t, " ");
	text_num(&t, (uint64_t)number, 0);
	text_str(&t, "\"}\n");
	report(fd, buf, t.len);
}

static void run_launcher(pid_t monitor, int in, int out, int err, int control, int console)
{
	/* The launcher lives for milliseconds: collecting garbage would be waste. */
	static char *const env[] = { "GOGC=off", "GOMAXPROCS=2", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", NULL };
	sigset_t none;

	/* Without us nobody would ever wait for what it makes. */
	if (prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0) < 0 || getppid() != monitor)
		_exit(126);
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	signal(SIGPIPE, SIG_DFL);
	signal(SIGHUP, SIG_DFL);
	if (dup2(in, 0) < 0 || dup2(out, 1) < 0 || dup2(err, 2) < 0 || dup2(control, LAUNCHER_CONTROL) < 0 ||
	    (console >= 0 && dup2(console, LAUNCHER_CONSOLE) < 0))
		_exit(126);
	execve(S.opt->launcher[0], S.opt->launcher, env);
	_exit(127);
}

static int receive_fd(int sock)
{
	char name[4096], control[CMSG_SPACE(sizeof(int))];
	struct iovec iov = { name, sizeof name };
	struct msghdr m = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control };
	struct cmsghdr *c;
	int fd;

	if (recvmsg(sock, &m, MSG_CMSG_CLOEXEC) < 0)
		return -1;
	c = CMSG_FIRSTHDR(&m);
	if (!c || c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
		return -1;
	memcpy(&fd, CMSG_DATA(c), sizeof fd);
	return fd;
}

/* The number after "pid": in the launcher's message, 0 if there is none. */
static pid_t pid_in(const char *m)
{
	const char *p = strstr(m, "\"pid\":");
	pid_t pid = 0;

	for (p = p ? p + 6 : ""; *p >= '0' && *p <= '9'; p++)
		pid = pid * 10 + (*p - '0');
	return pid;
}

/*
 * Runs the launcher to its end and hands its message to the runtime.
 * Returns the pid of the container's init, now our child, or 0.
 */
pid_t start_container(struct stream *out, struct stream *err, int report_fd)
{
	int in[2] = { -1, -1 }, o[2] = { -1, -1 }, e[2] = { -1, -1 }, control[2], console[2] = { -1, -1 };
	int null = high(open("/dev/null", O_RDWR | O_CLOEXEC)), status = 0;
	char message[CHUNK];
	size_t len = 0;
	pid_t launcher, init, self = getpid();
	ssize_t n;

	if (null < 0 || !make_pipe(control)) {
		fail(report_fd, "no descriptors, errno", errno);
		return 0;
	}
	if (S.opt->tty) {
		if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, console) < 0) {
			fail(report_fd, "console socket, errno", errno);
			return 0;
		}
		console[0] = high(console[0]);
		console[1] = high(console[1]);
	} else if (!make_pipe(o) || !make_pipe(e) || (S.opt->want_stdin && !make_pipe(in))) {
		fail(report_fd, "no pipes, errno", errno);
		return 0;
	}
	launcher = fork();
	if (launcher < 0) {
		fail(report_fd, "fork, errno", errno);
		return 0;
	}
	if (launcher == 0)
		run_launcher(self, in[0] >= 0 ? in[0] : null, o[1] >= 0 ? o[1] : null, e[1] >= 0 ? e[1] : null,
			   control[1], console[1]);
	close(control[1]);
	close(null);
	if (in[0] >= 0)
		close(in[0]);
	if (o[1] >= 0)
		close(o[1]);
	if (e[1] >= 0)
		close(e[1]);
	if (console[1] >= 0)
		close(console[1]);
	while (len < sizeof message - 1) {
		n = read(control[0], message + len, sizeof message - 1 - len);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			break;
		len += (size_t)n;
	}
	message[len] = 0;
	close(control[0]);
	while (waitpid(launcher, &status, 0) < 0 && errno == EINTR)
		;
	if (len == 0) {
		fail(report_fd, "the launcher ended without a word, wait status", status);
		return 0;
	}
	init = pid_in(message);
	if (init && S.opt->tty) {
		S.tty_fd = receive_fd(console[0]);
		if (S.tty_fd < 0) {
			kill(init, SIGKILL);
			fail(report_fd, "no terminal from the launcher, errno", errno);
			return 0;
		}
		fcntl(S.tty_fd, F_SETFL, O_RDWR | O_NONBLOCK);
		out->fd = S.stdin_fd = S.tty_fd;
		close(console[0]);
	} else if (init) {
		out->fd = o[0];
		err->fd = e[0];
		if (in[1] >= 0) {
			fcntl(in[1], F_SETFL, O_WRONLY | O_NONBLOCK);
			S.stdin_fd = in[1];
		}
	}
	S.init = init;
	if (init) {
		char buf[256];
		write_file("monitor.json", buf, state_text(buf, sizeof buf, init), false);
	}
	report(report_fd, message, len);
	return init;
}
