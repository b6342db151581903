package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/skiff-k8s/skiff/test/guest/plan"
)

// run goes through the plan.
func run() error {
	text, err := os.ReadFile(plan.Path)
	if err != nil {
		return err
	}
	var steps []plan.Step
	if err := json.Unmarshal(text, &steps); err != nil {
		return fmt.Errorf("read the plan: %w", err)
	}
	for _, s := range steps {
		fmt.Println("guest: step", s.Name)
		text, err := json.Marshal(step(s))
		if err != nil {
			return err
		}
		fmt.Println(plan.Mark + string(text))
	}
	return nil
}

func step(s plan.Step) plan.Result {
	r := plan.Result{Name: s.Name}
	begin := time.Now()
	ctx, cancel := context.WithTimeout(context.Background(), s.Timeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, s.Args[0], s.Args[1:]...)
	cmd.Dir, cmd.Env = s.Dir, append(os.Environ(), append(s.Env, "HOME=/root", "TMPDIR=/tmp")...)
	cmd.WaitDelay = 10 * time.Second // what it left running may hold its output
	out, in, err := os.Pipe()
	if err == nil {
		cmd.Stdout, cmd.Stderr = in, in
		err = cmd.Start()
		in.Close()
	}
	if err == nil {
		done := make(chan struct{})
		go func() { defer close(done); read(out, &r) }()
		err = cmd.Wait()
		select {
		case <-done:
		case <-time.After(cmd.WaitDelay):
			out.Close()
			<-done
		}
	}
	if err != nil {
		r.Error = err.Error()
	}
	r.Seconds = time.Since(begin).Seconds()
	return r
}

// read counts what a test binary says and passes it on, but for logs.
func read(out io.Reader, r *plan.Result) {
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, 1<<20)
	last := ""
	for lines.Scan() {
		line := lines.Text()
		text := strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(text, "--- PASS"):
			r.Passed++
		case strings.HasPrefix(text, "--- FAIL"):
			r.Failed++
		case strings.HasPrefix(text, "--- SKIP"):
			r.Skipped = append(r.Skipped, strings.TrimPrefix(text, "--- SKIP: ")+" "+last)
		case strings.Contains(text, "_test.go:"):
			last = text
		}
		if !strings.HasPrefix(text, "===") && !strings.HasPrefix(text, "time=") {
			fmt.Println(line)
		}
	}
}
