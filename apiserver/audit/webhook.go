package audit

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/clock"
)

// WebhookConfig is where events are sent.
type WebhookConfig struct {
	// ConfigFile is a kubeconfig whose server takes audit.k8s.io/v1 EventLists.
	ConfigFile string
	// InitialBackoff is how long to wait before the first repetition; 0: 10 s.
	InitialBackoff time.Duration
	// Mode is Batch if empty.
	Mode     Mode
	Batch    BatchConfig
	Truncate TruncateConfig
}

// webhookBackend posts events.
type webhookBackend struct {
	url      string
	client   *http.Client
	backoff  time.Duration
	strict   bool
	truncate TruncateConfig
	batcher  *batcher // nil: blocking
	clock    clock.WithTicker
	log      *slog.Logger

	// Of blocking sends. ending is closed when nothing is tried again, ctx ends when nothing
	// is waited for any more.
	ending chan struct{}
	ctx    context.Context
	cancel context.CancelFunc
	mu     sync.Mutex // so that none begins once run waits for them
	ended  bool
	sends  sync.WaitGroup
}

func newWebhookBackend(c WebhookConfig, log *slog.Logger, clk clock.WithTicker) (*webhookBackend, error) {
	if c.Mode == "" {
		c.Mode = Batch
	}
	if err := c.Mode.validate("webhook"); err != nil {
		return nil, err
	}
	if err := c.Truncate.validate("webhook"); err != nil {
		return nil, err
	}
	conf, err := clientcmd.BuildConfigFromFlags("", c.ConfigFile)
	if err != nil {
		return nil, fmt.Errorf("--audit-webhook-config-file: %w", err)
	}
	conf.Timeout = webhookTimeout
	client, err := rest.HTTPClientFor(conf)
	if err != nil {
		return nil, fmt.Errorf("--audit-webhook-config-file %s: %w", c.ConfigFile, err)
	}
	url, _, err := rest.DefaultServerUrlFor(conf)
	if err != nil {
		return nil, fmt.Errorf("--audit-webhook-config-file %s: %w", c.ConfigFile, err)
	}
	b := &webhookBackend{url: url.String(), client: client, backoff: c.InitialBackoff, strict: c.Mode == BlockingStrict, truncate: c.Truncate, clock: clk, log: log}
	b.ending = make(chan struct{})
	b.ctx, b.cancel = context.WithCancel(context.Background())
	if b.backoff <= 0 {
		b.backoff = 10 * time.Second
	}
	if c.Mode == Batch {
		if b.batcher, err = newBatcher(c.Batch, "webhook", clk, b.send, log); err != nil {
			return nil, err
		}
	}
	return b, nil
}

const (
	webhookTimeout = 30 * time.Second
	// Attempts and growth are upstream's (k8s.io/apiserver/pkg/util/webhook).
	webhookAttempts = 5
	backoffFactor   = 1.5
)

func (b *webhookBackend) put(ev event) bool {
	line := b.truncate.line(ev, "webhook", b.log)
	if line == nil {
		return true
	}
	if b.batcher != nil {
		b.batcher.put(line)
		return true
	}
	if err := b.block(line); err != nil {
		b.log.Error("send to the audit webhook", "auditID", ev.AuditID, "stage", ev.Stage, "err", err)
		return !b.strict
	}
	return true
}

func (b *webhookBackend) run(ctx context.Context) error {
	if b.batcher != nil {
		b.batcher.run(ctx)
	} else {
		b.endBlocking(ctx)
	}
	b.client.CloseIdleConnections()
	return nil
}

var errEnded = errors.New("the server has ended")

// block sends an event while its request waits.
func (b *webhookBackend) block(line []byte) error {
	b.mu.Lock()
	if b.ended {
		b.mu.Unlock()
		return errEnded
	}
	b.sends.Add(1)
	b.mu.Unlock()
	defer b.sends.Done()
	return b.send(b.ctx, [][]byte{line})
}

// endBlocking waits for ctx to end. What is being sent then has a little time, and is not
// tried again: a webhook that does not answer must not keep the server.
func (b *webhookBackend) endBlocking(ctx context.Context) {
	<-ctx.Done()
	b.mu.Lock()
	b.ended = true
	b.mu.Unlock()
	close(b.ending)
	through := make(chan struct{})
	go func() {
		defer close(through)
		b.sends.Wait()
	}()
	t := b.clock.NewTimer(lastSend)
	defer t.Stop()
	select {
	case <-through:
	case <-t.C():
	}
	b.cancel()
	<-through
}

// send posts events as lists, repeating what fails.
func (b *webhookBackend) send(ctx context.Context, lines [][]byte) error {
	for len(lines) > 0 {
		n := len(lines)
		if b.truncate.Enabled {
			size := int64(0)
			for n = 0; n < len(lines) && (n == 0 || size+int64(len(lines[n])) <= b.truncate.MaxBatchSize); n++ {
				size += int64(len(lines[n]))
			}
		}
		if err := b.repeat(ctx, eventList(lines[:n])); err != nil {
			return err
		}
		lines = lines[n:]
	}
	return nil
}

func (b *webhookBackend) repeat(ctx context.Context, body []byte) error {
	wait := b.backoff
	for attempt := 1; ; attempt++ {
		err := b.post(ctx, body)
		if err == nil || attempt == webhookAttempts || ctx.Err() != nil {
			return err
		}
		t := b.clock.NewTimer(wait)
		ends := b.ending
		if b.batcher != nil {
			ends = nil // what is left is sent with ctx
		}
		select {
		case <-t.C():
		case <-ctx.Done():
		case <-ends:
			t.Stop()
			return err
		}
		t.Stop()
		wait = time.Duration(float64(wait) * backoffFactor)
	}
}

func (b *webhookBackend) post(ctx context.Context, body []byte) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, b.url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, */*")
	resp, err := b.client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, io.LimitReader(resp.Body, 1<<20)); err != nil {
		return fmt.Errorf("read the answer of %s: %w", b.url, err)
	}
	if resp.StatusCode < 200 || resp.StatusCode > 299 {
		return fmt.Errorf("%s answered %s", b.url, resp.Status)
	}
	return nil
}

// eventList is the audit.k8s.io/v1 EventList of encoded events, which carry no kind of
// their own in it.
func eventList(lines [][]byte) []byte {
	b := []byte(`{"kind":"EventList","apiVersion":"audit.k8s.io/v1","metadata":{},"items":[`)
	for i, l := range lines {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, '{')
		b = append(b, bytes.TrimSuffix(l[len(eventHead):], []byte("\n"))...)
	}
	return append(b, "]}\n"...)
}
