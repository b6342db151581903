package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
)

// sentKey is the annotation in which the writer puts the time of each patch.
const sentKey = "apibench/sent"

// caseWatch opens w watches on the pods of the namespace and patches pods n
// times from one writer.  Watchers only frame the stream and look for the
// annotation; they do not decode, so that the client, which shares the
// machine with the server, stays cheap.  Latency is from just before the
// patch is sent until its event has been read, so it holds the write as well;
// the patches' own latency is in extra.
func caseWatch(ctx context.Context, b *bench, p params, r *result) {
	nw, n, rate := p.int("w", 100), p.int("n", 500), p.int("rate", 0)
	if b.created == 0 {
		r.fail(fmt.Errorf("no pods: run create first"))
		return
	}
	list, err := b.client(0).CoreV1().Pods(b.ns).List(ctx, metav1.ListOptions{Limit: 1})
	if err != nil {
		r.fail(err)
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()

	const perConn = 90 // kube-apiserver allows 100 streams a connection
	var delivered, bytesRead atomic.Int64
	var mu sync.Mutex
	lat := make([]time.Duration, 0, nw*n)
	var lastEvent time.Time
	var ready, done sync.WaitGroup
	var hc *http.Client
	openStart := time.Now()
	for i := range nw {
		if i%perConn == 0 {
			if hc, err = rest.HTTPClientFor(newConfig(b.cfg, b.contentType, false)); err != nil {
				r.fail(err)
				return
			}
		}
		client := hc
		ready.Add(1)
		done.Go(func() {
			mine := make([]time.Duration, 0, n)
			var last time.Time
			err := rawWatch(ctx, client, b, list.ResourceVersion, ready.Done, func(frame []byte, nb int) bool {
				bytesRead.Add(int64(nb))
				sent, ok := findSent(frame, b.contentType)
				if !ok {
					return true
				}
				last = time.Now()
				mine = append(mine, last.Sub(time.Unix(0, sent)))
				delivered.Add(1)
				return len(mine) < n
			})
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				r.fail(err)
			}
			lat = append(lat, mine...)
			if last.After(lastEvent) {
				lastEvent = last
			}
		})
	}
	ready.Wait()
	r.extra("open_s", time.Since(openStart).Seconds())

	var writes result
	start := time.Now()
	run(&writes, n, 1, func(_, i int) (int64, error) {
		if rate > 0 {
			time.Sleep(time.Until(start.Add(time.Duration(i) * time.Second / time.Duration(rate))))
		}
		body := fmt.Sprintf(`{"metadata":{"annotations":{%q:"%d"}}}`, sentKey, time.Now().UnixNano())
		_, err := b.client(0).CoreV1().Pods(b.ns).Patch(ctx, b.podName(i%b.created), types.MergePatchType, []byte(body), metav1.PatchOptions{})
		return 0, err
	})
	writeEnd := time.Now()
	want := int64(nw) * int64(writes.Ops)
	for delivered.Load() < want && time.Since(writeEnd) < time.Minute {
		time.Sleep(10 * time.Millisecond) // the readers count without telling, which would cost them
	}
	cancel()
	done.Wait()

	r.Ops = int(delivered.Load()) // events, all watchers together
	r.Bytes = bytesRead.Load()
	r.Seconds = max(lastEvent.Sub(start), writeEnd.Sub(start)).Seconds()
	r.setLatencies(lat)
	r.Errors += writes.Errors
	if r.FirstError == "" {
		r.FirstError = writes.FirstError
	}
	if missing := want - delivered.Load(); missing > 0 {
		r.fail(fmt.Errorf("%d events missing", missing))
	}
	r.extra("writes", float64(writes.Ops))
	r.extra("writes_per_s", float64(writes.Ops)/writeEnd.Sub(start).Seconds())
	r.extra("write_p50_ms", writes.P50ms)
	r.extra("write_p99_ms", writes.P99ms)
}

// rawWatch reads one watch stream frame by frame until fn says stop, the
// context ends or the stream breaks.  It calls opened exactly once.
func rawWatch(ctx context.Context, hc *http.Client, b *bench, rv string, opened func(), fn func(frame []byte, nb int) bool) error {
	var once sync.Once
	defer once.Do(opened)
	q := url.Values{"watch": {"true"}, "resourceVersion": {rv}, "allowWatchBookmarks": {"true"}, "timeoutSeconds": {"3600"}}
	req, err := http.NewRequestWithContext(ctx, "GET", strings.TrimSuffix(b.cfg.Host, "/")+"/api/v1/namespaces/"+b.ns+"/pods?"+q.Encode(), nil)
	if err != nil {
		return err
	}
	req.Header.Set("Accept", "application/json")
	if b.contentType == "protobuf" {
		req.Header.Set("Accept", "application/vnd.kubernetes.protobuf;stream=watch")
	}
	resp, err := hc.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("watch: %s", resp.Status)
	}
	once.Do(opened)
	br := bufio.NewReaderSize(resp.Body, 16<<10)
	var buf []byte
	protobuf := b.contentType == "protobuf"
	for {
		if protobuf {
			var size [4]byte
			if _, err = io.ReadFull(br, size[:]); err == nil {
				n := int(binary.BigEndian.Uint32(size[:]))
				if cap(buf) < n {
					buf = make([]byte, n)
				}
				buf = buf[:n]
				_, err = io.ReadFull(br, buf)
			}
		} else {
			buf = buf[:0]
			for {
				var part []byte
				part, err = br.ReadSlice('\n')
				buf = append(buf, part...)
				if err != bufio.ErrBufferFull {
					break
				}
			}
		}
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("watch: %w", err)
		}
		if !fn(buf, len(buf)) {
			return nil
		}
	}
}

// findSent finds the time in the sentKey annotation of an encoded pod.  In
// JSON the key is followed by `":"`, in protobuf by a tag and a length byte;
// managedFields names the key too, but not with digits after it.
func findSent(frame []byte, contentType string) (int64, bool) {
	skip := 3
	if contentType == "protobuf" {
		skip = 2
	}
	for {
		i := bytes.Index(frame, []byte(sentKey))
		if i < 0 {
			return 0, false
		}
		frame = frame[i+len(sentKey):]
		if len(frame) < skip+19 {
			return 0, false
		}
		if n, err := strconv.ParseInt(string(frame[skip:skip+19]), 10, 64); err == nil {
			return n, true
		}
	}
}
