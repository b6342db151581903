#include "monitor.h"

#include <errno.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

/* The caller reads no further input while some is held back in S.in. */
void input_put(const char *data, size_t n)
{
	if (S.stdin_fd < 0 || n > sizeof S.in - S.in_len)
		return;
	memcpy(S.in + S.in_len, data, n);
	S.in_len += n;
	input_flush();
}

void input_flush(void)
{
	while (S.in_len > 0) {
		ssize_t n = write(S.stdin_fd, S.in, S.in_len);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && errno == EAGAIN)
			return;
		if (n <= 0) {
			/* Nobody will ever read it. */
			S.in_len = 0;
			S.in_close = true;
			break;
		}
		S.in_len -= (size_t)n;
		memmove(S.in, S.in + n, S.in_len);
	}
	if (S.in_close && S.stdin_fd >= 0 && S.stdin_fd != S.tty_fd) {
		close(S.stdin_fd);
		S.stdin_fd = -1;
	}
}

/*
 * A client's input has ended. Only a container that asked for it (stdinOnce)
 * sees the end; others wait for the next client. A terminal has no end of file
 * of its own: the client sends what ends the input there.
 */
void input_end(void)
{
	if (!S.opt->stdin_once || S.opt->tty)
		return;
	S.in_close = true;
	if (S.stdin_fd >= 0)
		input_flush();
}

int input_resize(uint16_t rows, uint16_t cols)
{
	struct winsize ws = { .ws_row = rows, .ws_col = cols };

	if (S.tty_fd < 0)
		return ENOTTY;
	return ioctl(S.tty_fd, TIOCSWINSZ, &ws) < 0 ? errno : 0;
}
