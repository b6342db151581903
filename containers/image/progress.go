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

// progress is what a pull or a load has brought so far.
type progress struct {
	bytes atomic.Int64
	total atomic.Int64 // 0: not known yet
	// asked are requests whose answers have not come to their end.
	asked atomic.Int64

	unpacked     atomic.Int64 // bytes
	done, layers atomic.Int64
}

// Progress is how far a Load is.
type Progress struct {
	Bytes        int64 // unpacked
	Done, Layers int64 // of the images looked at so far
}

// Follow returns a context for a Load, and what tells how far it is.
func Follow(ctx context.Context) (context.Context, func() Progress) {
	p := &progress{}
	return context.WithValue(ctx, progressKey{}, p), func() Progress {
		return Progress{Bytes: p.unpacked.Load(), Done: p.done.Load(), Layers: p.layers.Load()}
	}
}

type progressKey struct{}

func progressOf(ctx context.Context) *progress {
	p, _ := ctx.Value(progressKey{}).(*progress)
	return p
}

// counted is a stream whose bytes count.
type counted struct {
	io.ReadCloser
	n *atomic.Int64
}

func (c *counted) Read(b []byte) (int, error) {
	n, err := c.ReadCloser.Read(b)
	c.n.Add(int64(n))
	return n, err
}

// answer is the body of a registry's answer.
type answer struct {
	counted
	over func()
}

func (a *answer) Close() error {
	a.over()
	return a.ReadCloser.Close()
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
				// Unpacking may take its time: the registry is not waited for then.
				if n := p.bytes.Load(); n != last || p.asked.Load() == 0 {
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
