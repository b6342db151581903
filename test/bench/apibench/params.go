package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// caseFunc does the operations of a case and fills the result.
type caseFunc func(ctx context.Context, b *bench, p params, r *result)

// caseSpec is one case of the command line.
type caseSpec struct {
	spec, id               string
	contentType, namespace string
	place                  bool // it works in a namespace
	unprofiled             bool // not even with --profile
	params                 params
	do                     caseFunc
}

// params are the key=value parts of one case; values were checked by parseCase.
type params map[string]string

func parseCase(spec string, o options) (*caseSpec, error) {
	parts := strings.Split(spec, ":")
	kind, ok := kinds()[parts[0]]
	if !ok {
		return nil, fmt.Errorf("no case %q", parts[0])
	}
	c := &caseSpec{spec: spec, id: spec, contentType: o.contentType, namespace: o.namespace, place: kind.place, do: kind.do, params: params{}}
	for _, kv := range parts[1:] {
		k, v, ok := strings.Cut(kv, "=")
		if !ok {
			return nil, fmt.Errorf("%s: %q is not key=value", spec, kv)
		}
		switch k {
		case "id":
			c.id = v
		case "ct":
			c.contentType = v
		case "ns":
			c.namespace = v
		case "profile":
			c.unprofiled = v == "no"
		default:
			if err := kind.check(k, v); err != nil {
				return nil, fmt.Errorf("%s: %w", spec, err)
			}
			c.params[k] = v
		}
	}
	if c.contentType != "json" && c.contentType != "protobuf" {
		return nil, fmt.Errorf("%s: content type %q must be json or protobuf", spec, c.contentType)
	}
	return c, nil
}

// kind is what a case of that name does and takes.
type kind struct {
	do    caseFunc
	place bool
	takes string // parameters, one letter for the type after each: # number, ~ duration, $ text
}

func (k kind) check(key, value string) error {
	for _, t := range strings.Fields(k.takes) {
		if t[:len(t)-1] != key {
			continue
		}
		switch t[len(t)-1] {
		case '#':
			if _, err := strconv.Atoi(value); err != nil {
				return fmt.Errorf("%s=%s is not a number", key, value)
			}
		case '~':
			if _, err := time.ParseDuration(value); err != nil {
				return fmt.Errorf("%s=%s is not a duration", key, value)
			}
		}
		return nil
	}
	return fmt.Errorf("it has no parameter %q", key)
}

func kinds() map[string]kind {
	return map[string]kind{
		"ready":     {caseReady, false, "timeout~"},
		"create":    {caseCreate, true, "n# c# sched$"},
		"get":       {caseGet, true, "n# c#"},
		"list":      {caseList, true, "n# c# mode$"},
		"patch":     {casePatch, true, "n# c#"},
		"update":    {caseUpdate, true, "n# c#"},
		"watch":     {caseWatch, true, "w# n# rate#"},
		"apply":     {caseApply, true, "n# c# mode$"},
		"delcol":    {caseDelCol, true, "what$"},
		"nodes":     {caseNodes, false, "n# c# first#"},
		"heartbeat": {caseHeartbeat, false, "n# c#"},
		"bind":      {caseBind, true, "n# c# timeout~"},
		"deploy":    {caseDeploy, true, "replicas#"},
		"services":  {caseServices, true, "n# c# endpoints#"},
		"sleep":     {caseSleep, false, "d~"},
	}
}

func (p params) int(key string, def int) int {
	if n, err := strconv.Atoi(p[key]); err == nil {
		return n
	}
	return def
}

func (p params) str(key, def string) string {
	if s, ok := p[key]; ok {
		return s
	}
	return def
}

func (p params) dur(key string, def time.Duration) time.Duration {
	if d, err := time.ParseDuration(p[key]); err == nil {
		return d
	}
	return def
}

func caseSleep(ctx context.Context, _ *bench, p params, r *result) {
	select {
	case <-time.After(p.dur("d", 10*time.Second)):
	case <-ctx.Done():
		r.fail(ctx.Err())
	}
}
