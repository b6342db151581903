package image

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
)

const (
	defaultProgressDeadline = time.Minute
	defaultProgressEvery    = 10 * time.Second
)

// progress is what a pull has brought so far.
type progress struct {
	bytes atomic.Int64
	total atomic.Int64 // 0: not known yet
}

type progressKey struct{}

func progressOf(ctx context.Context) *progress {
	p, _ := ctx.Value(progressKey{}).(*progress)
	return p
}

// counted is an answer whose bytes count.
type counted struct {
	io.ReadCloser
	p *progress
}

func (c *counted) Read(b []byte) (int, error) {
	n, err := c.ReadCloser.Read(b)
	c.p.bytes.Add(int64(n))
	return n, err
}

// follow tells of a pull that takes its time, and ends it by its context when nothing comes
// any more. Stop must be called.
func (f *fetcher) follow(ctx context.Context, ref string, log *slog.Logger) (_ context.Context, stop func()) {
	deadline, every := f.reg.ProgressDeadline, f.reg.ProgressEvery
	if deadline == 0 {
		deadline = defaultProgressDeadline
	}
	if every == 0 {
		every = defaultProgressEvery
	}
	p := &progress{}
	ctx, cancel := context.WithCancelCause(context.WithValue(ctx, progressKey{}, p))
	done := make(chan struct{})
	var over sync.WaitGroup
	over.Add(1)
	go func() {
		defer over.Done()
		tell, look := time.NewTicker(every), time.NewTicker(deadline/4)
		defer tell.Stop()
		defer look.Stop()
		var last, told int64
		moved := time.Now()
		for {
			select {
			case <-done:
				return
			case <-tell.C:
				n := p.bytes.Load()
				log.Info("pulling image", "image", ref, "bytes", n, "of", p.total.Load(), "bytesPerSecond", int64(float64(n-told)/every.Seconds()))
				told = n
			case <-look.C:
				if n := p.bytes.Load(); n != last {
					last, moved = n, time.Now()
				} else if idle := time.Since(moved); idle >= deadline {
					cancel(fmt.Errorf("the registry has sent nothing for %s, after %d bytes", idle.Truncate(time.Millisecond), n))
					return
				}
			}
		}
	}()
	return ctx, func() {
		close(done)
		over.Wait()
		cancel(nil)
	}
}
