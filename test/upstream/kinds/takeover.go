package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// made is an object under test.
type made struct {
	*kind
	path string
}

// takeover: writer fills an etcd, reader starts on what is there, and both go on side by side.
func takeover(ctx context.Context, r *report, parent string, bin binaries, writer, reader string) error {
	w, err := newWorld(ctx, parent, writer+"-first", bin)
	if err != nil {
		return err
	}
	defer w.close()
	a, err := w.named(ctx, writer)
	if err != nil {
		return err
	}
	if err := prepare(ctx, a); err != nil {
		return err
	}
	found, err := a.discover(ctx)
	if err != nil {
		return err
	}
	kinds := served(found)
	var objects []made
	for _, k := range ordered(kinds) {
		path, err := k.create(ctx, a, kinds)
		if err != nil {
			r.fail(result{Check: "create", Writer: writer, Kind: k.String(), Object: path}, err)
			continue
		}
		r.add(result{Check: "create", Writer: writer, Kind: k.String(), Object: path})
		objects = append(objects, made{k, path})
	}
	before, err := w.settled(ctx)
	if err != nil {
		return err
	}
	b, err := w.named(ctx, reader)
	if err != nil {
		return err
	}
	t := &pair{report: r, world: w, writer: a, reader: b, kinds: kinds, objects: objects}
	t.sameKinds(ctx)
	t.read(ctx)
	t.list(ctx)
	if err := t.unchanged(ctx, before); err != nil {
		return err
	}
	t.put(ctx)
	if err := t.watch(ctx); err != nil {
		return err
	}
	t.allocate(ctx)
	t.token(ctx)
	return nil
}

// ordered puts what restricts others last.
func ordered(kinds []*kind) []*kind {
	out := slices.Clone(kinds)
	late := func(k *kind) int {
		switch k.gvr.Resource {
		case "resourcequotas", "limitranges", "validatingwebhookconfigurations", "mutatingwebhookconfigurations":
			return 1
		}
		return 0
	}
	slices.SortStableFunc(out, func(x, y *kind) int { return late(x) - late(y) })
	return out
}

// pair is two servers on one etcd.
type pair struct {
	*report
	world          *world
	writer, reader *server
	kinds          []*kind
	objects        []made
}

func (t *pair) result(check, kind, object string) result {
	return result{Check: check, Writer: t.writer.name, Reader: t.reader.name, Kind: kind, Object: object}
}

// keys is the revision of every key in the store.
func (w *world) keys(ctx context.Context) (map[string]int64, error) {
	resp, err := w.etcd.Get(ctx, "/registry/", clientv3.WithPrefix(), clientv3.WithKeysOnly())
	if err != nil {
		return nil, err
	}
	out := map[string]int64{}
	for _, kv := range resp.Kvs {
		out[string(kv.Key)] = kv.ModRevision
	}
	return out, nil
}

// settled is keys once nothing has changed for two seconds: controllers of the server itself
// follow what was made.
func (w *world) settled(ctx context.Context) (map[string]int64, error) {
	last, err := w.keys(ctx)
	for range 30 {
		if err != nil {
			return nil, err
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(2 * time.Second):
		}
		var now map[string]int64
		if now, err = w.keys(ctx); err != nil {
			return nil, err
		}
		maps.DeleteFunc(now, func(key string, _ int64) bool { return own.MatchString(key) })
		if maps.Equal(now, last) {
			return now, nil
		}
		last = now
	}
	return last, nil
}

// sameKinds compares what both serve.
func (t *pair) sameKinds(ctx context.Context) {
	readers, err := t.reader.discover(ctx)
	if err != nil {
		t.fail(t.result("kinds", "all", ""), err)
		return
	}
	writers, err := t.writer.discover(ctx)
	if err != nil {
		t.fail(t.result("kinds", "all", ""), err)
		return
	}
	before := len(t.results)
	for gv, rs := range writers {
		for name := range rs {
			if _, ok := readers[gv][name]; !ok {
				t.add(t.result("kinds", gv.String()+"/"+name, ""), "not served by "+t.reader.name)
			}
		}
	}
	for gv, rs := range readers {
		for name := range rs {
			if _, ok := writers[gv][name]; !ok {
				t.add(t.result("kinds", gv.String()+"/"+name, ""), "not served by "+t.writer.name)
			}
		}
	}
	if len(t.results) == before {
		t.add(t.result("kinds", "all", ""))
	}
}

// read compares each object, in each version that it is served in.
func (t *pair) read(ctx context.Context) {
	for _, o := range t.objects {
		for _, k := range t.kinds {
			if k.gvr.Group != o.gvr.Group || k.gvr.Resource != o.gvr.Resource {
				continue
			}
			path := strings.Replace(o.path, o.kind.path(namespace), k.path(namespace), 1)
			t.compare(ctx, t.result("read", k.String(), path), path)
		}
	}
}

func (t *pair) compare(ctx context.Context, res result, path string) {
	x, err := t.writer.get(ctx, path)
	if err != nil {
		t.fail(res, err)
		return
	}
	y, err := t.reader.get(ctx, path)
	if err != nil {
		t.fail(res, err)
		return
	}
	t.add(res, differ("$", x, y)...)
}

// list compares all objects there are, those that the servers make for themselves included.
func (t *pair) list(ctx context.Context) {
	for _, k := range t.kinds {
		res := t.result("list", k.String(), k.path(""))
		x, err := t.writer.get(ctx, k.path(""))
		if err != nil {
			t.fail(res, err)
			continue
		}
		y, err := t.reader.get(ctx, k.path(""))
		if err != nil {
			t.fail(res, err)
			continue
		}
		t.add(res, differ("$", byName(x), byName(y))...)
	}
}

// byName makes a list's items comparable where a server has written meanwhile: the leases of the
// servers themselves are left out.
func byName(list object) object {
	out := object{"apiVersion": list["apiVersion"], "kind": list["kind"]}
	items, _ := list["items"].([]any)
	for _, i := range items {
		m := i.(object)["metadata"].(object)
		name := fmt.Sprint(m["namespace"], "/", m["name"])
		if !strings.HasPrefix(name, "kube-system/apiserver-") {
			out[name] = i
		}
	}
	return out
}

// own are keys that every API server writes at its start.
var own = regexp.MustCompile(`^/registry/(masterleases/|leases/kube-system/apiserver-|services/endpoints/default/kubernetes$|endpointslices/default/kubernetes$|peerserverleases/)`)

// unchanged looks for objects that the reader's start has changed: defaults of its own for
// roles, priority levels … that are not the writer's.
func (t *pair) unchanged(ctx context.Context, before map[string]int64) error {
	after, err := t.world.keys(ctx)
	if err != nil {
		return err
	}
	for _, key := range slices.Sorted(maps.Keys(before)) {
		rev := before[key]
		if own.MatchString(key) {
			continue
		}
		res := t.result("unchanged", key, "")
		switch now, ok := after[key]; {
		case !ok:
			t.add(res, "deleted")
		case now != rev:
			t.add(res, "changed"+t.change(ctx, key, rev, now))
		default:
			t.add(res)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(after)) {
		if _, ok := before[key]; !ok && !own.MatchString(key) {
			t.add(t.result("unchanged", key, ""), "created")
		}
	}
	return nil
}

// change shows the printable part of what changed.
func (t *pair) change(ctx context.Context, key string, from, to int64) string {
	out := ""
	for _, rev := range []int64{from, to} {
		resp, err := t.world.etcd.Get(ctx, key, clientv3.WithRev(rev))
		if err != nil || len(resp.Kvs) == 0 {
			return out
		}
		text := bytes.Map(func(r rune) rune {
			if r < ' ' || r > '~' {
				return '.'
			}
			return r
		}, resp.Kvs[0].Value)
		out += fmt.Sprintf("\n     %.1500s", text)
	}
	return out
}

// put writes each object back unchanged: where the server would store other bytes than are
// there, the object's resourceVersion changes.
func (t *pair) put(ctx context.Context) {
	for _, o := range t.objects {
		for _, s := range []*server{t.reader, t.writer} {
			res := t.result("put by "+s.name, o.String(), o.path)
			x, err := s.get(ctx, o.path)
			if err != nil {
				t.fail(res, err)
				continue
			}
			y, err := s.do(ctx, http.MethodPut, o.path, "", x)
			if err != nil {
				if strings.Contains(err.Error(), "405") {
					continue // such objects cannot be updated
				}
				t.fail(res, err)
				continue
			}
			diffs := differ("$", x, y)
			if len(diffs) > 0 {
				rev := func(o object) (n int64) {
					fmt.Sscan(fmt.Sprint(o["metadata"].(object)["resourceVersion"]), &n)
					return n
				}
				if key := t.key(ctx, rev(y)); key != "" {
					diffs = append(diffs, "bytes"+t.change(ctx, key, rev(x), rev(y)))
				}
			}
			t.add(res, diffs...)
		}
	}
}

// key finds the key that was written at a revision.
func (t *pair) key(ctx context.Context, rev int64) string {
	resp, err := t.world.etcd.Get(ctx, "/registry/", clientv3.WithPrefix(), clientv3.WithKeysOnly(), clientv3.WithMinModRev(rev), clientv3.WithMaxModRev(rev))
	if err != nil || len(resp.Kvs) == 0 {
		return ""
	}
	return string(resp.Kvs[0].Key)
}

// watch changes each object through one server and the other, deletes it, and compares what
// both tell their watchers of that.
func (t *pair) watch(ctx context.Context) error {
	from := map[string]string{}
	for _, o := range t.objects {
		l, err := t.reader.get(ctx, o.kind.path(namespace)+"?limit=1")
		if err != nil {
			return err
		}
		from[o.path] = fmt.Sprint(l["metadata"].(object)["resourceVersion"])
		for _, s := range []*server{t.reader, t.writer} {
			patch := fmt.Sprintf(`{"metadata":{"annotations":{"kinds.example.com/%s":"was here"}}}`, s.name)
			_, err := s.do(ctx, http.MethodPatch, o.path, "application/merge-patch+json", patch)
			if err != nil {
				t.fail(t.result("patch by "+s.name, o.String(), o.path), err)
			}
		}
		if _, err := t.reader.do(ctx, http.MethodDelete, o.path, "", `{"propagationPolicy":"Background"}`); err != nil {
			t.fail(t.result("delete by "+t.reader.name, o.String(), o.path), err)
		}
	}
	type streams [2][]string
	all := make([]streams, len(t.objects))
	errs := make([]error, len(t.objects))
	var wg sync.WaitGroup
	gate := make(chan struct{}, 16)
	for i, o := range t.objects {
		wg.Go(func() {
			gate <- struct{}{}
			defer func() { <-gate }()
			for j, s := range []*server{t.writer, t.reader} {
				path := fmt.Sprintf("%s?watch=1&timeoutSeconds=2&resourceVersion=%s", o.kind.path(namespace), from[o.path])
				code, text, err := s.raw(ctx, http.MethodGet, path, "", nil)
				if err == nil && code != http.StatusOK {
					err = fmt.Errorf("watch %s at %s: %d %.300s", path, s.name, code, text)
				}
				if err != nil {
					errs[i] = err
					return
				}
				for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
					all[i][j] = append(all[i][j], lines.Text())
				}
			}
		})
	}
	wg.Wait()
	for i, o := range t.objects {
		res := t.result("watch", o.String(), o.path)
		if errs[i] != nil {
			t.fail(res, errs[i])
			continue
		}
		t.add(res, sameEvents(all[i][0], all[i][1])...)
	}
	return nil
}

// sameEvents compares two streams; at least the two changes and the deletion must be there.
func sameEvents(a, b []string) (diffs []string) {
	if len(a) < 3 {
		diffs = append(diffs, fmt.Sprintf("%d events, want 3 or more", len(a)))
	}
	if len(a) != len(b) {
		return append(diffs, fmt.Sprintf("%d events, then %d", len(a), len(b)))
	}
	for i := range a {
		var x, y object
		if err := json.Unmarshal([]byte(a[i]), &x); err != nil {
			return append(diffs, err.Error())
		}
		if err := json.Unmarshal([]byte(b[i]), &y); err != nil {
			return append(diffs, err.Error())
		}
		diffs = append(diffs, differ(fmt.Sprintf("event[%d]", i), x, y)...)
	}
	return diffs
}
