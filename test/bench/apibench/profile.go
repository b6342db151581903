package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/skiff-k8s/skiff/test/bench/record"
)

// profileSeconds is how long a case is profiled; it is run again and again meanwhile.
const profileSeconds = 4

// profiled runs a case while the server takes a CPU profile of itself, and writes that to DIR/CASE.pprof.
func (b *bench) profiled(ctx context.Context, c *caseSpec, dir string) (*result, error) {
	type answer struct {
		raw []byte
		err error
	}
	done := make(chan answer, 1)
	go func() {
		raw, err := b.client(0).CoreV1().RESTClient().Get().AbsPath("/debug/pprof/profile").
			Param("seconds", strconv.Itoa(profileSeconds)).SetHeader("Accept", "*/*").
			Timeout((profileSeconds + 20) * time.Second).Do(ctx).Raw()
		done <- answer{raw, err}
	}()
	r := &result{record.Result{Case: c.id, Spec: c.spec}}
	once := c.spec[:min(len(c.spec), 6)] == "delcol" // there is nothing left for a second time
	for {
		c.do(ctx, b, c.params, r)
		var got *answer
		if once {
			a := <-done
			got = &a
		} else {
			select {
			case a := <-done:
				got = &a
			default:
			}
		}
		if got == nil {
			continue
		}
		if got.err != nil {
			return nil, fmt.Errorf("take CPU profile: %w", got.err)
		}
		return r, os.WriteFile(filepath.Join(dir, c.id+".pprof"), got.raw, 0o644)
	}
}
