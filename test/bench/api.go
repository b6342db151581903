package main

import (
	"errors"
	"time"

	"github.com/skiff-k8s/skiff/test/bench/record"
	"github.com/skiff-k8s/skiff/test/bench/side"
)

// runAPI is the stage of a control plane without nodes.
func runAPI(r *stageRun) (err error) {
	k, ok, err := r.controlPlane()
	if err != nil || !ok {
		return err
	}
	defer func() { err = errors.Join(err, k.Stop()) }()
	if r.wanted["boot"] && r.round != 0 {
		r.add(record.Line{Result: bootResult(k)})
	}
	if r.wanted["idle"] && r.round != 0 {
		select { // what starting left behind is not idling
		case <-time.After(20 * time.Second):
		case <-r.ctx.Done():
			return r.ctx.Err()
		}
	}
	return r.load(k)
}

func bootResult(k *side.Cluster) record.Result {
	res := record.Result{Case: "boot", Ops: 1, Seconds: k.Boot.Seconds(), Wall: k.Boot.Seconds(), Servers: map[string]record.Usage{}}
	for name, cpu := range k.BootCPU {
		res.Servers[name] = record.Usage{CPU: cpu}
	}
	return res
}

// runScheduling is the stage of a control plane with many nodes that only exist as objects.
func runScheduling(r *stageRun) (err error) {
	k, ok, err := r.controlPlane()
	if err != nil || !ok {
		return err
	}
	defer func() { err = errors.Join(err, k.Stop()) }()
	return r.load(k)
}
