package etcd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/skiff-k8s/skiff/store"
	"github.com/skiff-k8s/skiff/store/storetest"
)

// quorumAt is a place for one more member on this process's address.
func quorumAt(t *testing.T, f tlsFiles) *Quorum {
	t.Helper()
	return &Quorum{
		Peer: netip.MustParseAddrPort(freePort(t)), Client: netip.MustParseAddrPort(freePort(t)),
		CAFile: f.ca, PeerCert: f.cert, PeerKey: f.key, ServerCert: f.cert, ServerKey: f.key, ClientCert: f.cert, ClientKey: f.key,
	}
}

// voter is an embedded member of several.
type voter struct {
	*Server
	cfg  Config
	stop context.CancelFunc
	done chan error
}

// launch starts a member and does not wait for it.
func launch(t *testing.T, c Config) *voter {
	t.Helper()
	if c.Logger == nil {
		c.Logger = slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelError})).With("member", c.Name)
	}
	if err := os.Chmod(c.DataDir, 0o700); err != nil {
		t.Fatal(err)
	}
	s, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	v := &voter{Server: s, cfg: c, stop: cancel, done: make(chan error, 1)}
	go func() { v.done <- s.Run(ctx) }()
	t.Cleanup(func() { v.end(t) })
	return v
}

func (v *voter) await(t *testing.T) *voter {
	t.Helper()
	select {
	case <-v.Ready():
	case err := <-v.done:
		v.done <- err
		t.Fatalf("member %s ended: %v", v.cfg.Name, err)
	case <-time.After(patience):
		t.Fatalf("member %s is not ready", v.cfg.Name)
	}
	return v
}

// end stops it and returns how it ended; it may be called again.
func (v *voter) end(t *testing.T) error {
	t.Helper()
	v.stop()
	err := <-v.done
	v.done <- err
	return err
}

// again starts a stopped member with its data, and with nothing said of joining.
func (v *voter) again(t *testing.T) *voter {
	t.Helper()
	c := v.cfg
	q := *c.Quorum
	q.Join, c.Quorum = nil, &q
	return launch(t, c)
}

// quorum starts n members, each of which joins the first.
func quorum(t *testing.T, n int) []*voter {
	t.Helper()
	files := newAuthority(t).issue(time.Now().Add(time.Hour))
	var all []*voter
	for i := range n {
		c := Config{Name: fmt.Sprintf("m%d", i), DataDir: t.TempDir(), Quorum: quorumAt(t, files)}
		if i > 0 {
			c.Quorum.Join = []string{all[0].cfg.Quorum.clientURL()}
		}
		all = append(all, launch(t, c).await(t))
	}
	return all
}

// leader is the member of all that leads, once there is one.
func leader(t *testing.T, all ...*voter) int {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(patience); time.Now().Before(end); <-tick.C {
		for i, v := range all {
			if v.local.Lead() == uint64(v.local.MemberID()) {
				return i
			}
		}
	}
	t.Fatal("nobody leads")
	return 0
}

// TestQuorum: every member of three is the whole store.
func TestQuorum(t *testing.T) {
	all := quorum(t, 3)
	for _, v := range all {
		if v.local.IsLearner() {
			t.Errorf("%s is ready and still a learner", v.cfg.Name)
		}
	}
	lead := leader(t, all...)
	t.Run("follower", func(t *testing.T) { storetest.Run(t, func(*testing.T) store.Store { return all[(lead+1)%3] }) })
	// What one has acknowledged all have, without waiting.
	for i := range 30 {
		key := fmt.Sprintf("/quorum/%d", i)
		rev, err := all[i%3].Create(t.Context(), key, []byte(key), 0)
		if err != nil {
			t.Fatal(err)
		}
		if kv, at, err := all[(i+1)%3].Get(t.Context(), key); err != nil || kv.ModRevision != rev || at < rev {
			t.Fatalf("%s was written at %d; another member has it at %d (%d, %v)", key, rev, kv.ModRevision, at, err)
		}
	}
}

// TestQuorumSurvivesMembers: whichever member stops, the others go on, and it catches up
// when it comes back; a watch on a member that lives misses and repeats nothing.
func TestQuorumSurvivesMembers(t *testing.T) {
	all := quorum(t, 3)
	for range 2 {
		gone := leader(t, all...)
		rest := []*voter{all[(gone+1)%3], all[(gone+2)%3]}
		prefix := fmt.Sprintf("/survives-%d/", time.Now().UnixNano())
		w, err := rest[1].Watch(t.Context(), prefix, 0)
		if err != nil {
			t.Fatal(err)
		}
		acknowledged := writeWhile(t, rest[0], prefix, func(wrote *atomic.Int64) {
			waitFor(t, wrote, 50)
			if err := all[gone].end(t); err != nil {
				t.Errorf("a member that is told to stop: %v", err)
			}
			waitFor(t, wrote, wrote.Load()+50)
			all[gone] = all[gone].again(t).await(t)
			waitFor(t, wrote, wrote.Load()+50)
		})
		checkAll(t, rest[1], w, acknowledged)
		w.Close()
		for key := range acknowledged {
			if _, _, err := all[gone].Get(t.Context(), key); err != nil {
				t.Errorf("the member that came back: %v", err)
			}
		}
	}
}

// TestQuorumLost: a member alone of three refuses at once and clearly, and goes on by
// itself when another is back.
func TestQuorumLost(t *testing.T) {
	all := quorum(t, 3)
	if _, err := all[0].Create(t.Context(), "/lost/before", nil, 0); err != nil {
		t.Fatal(err)
	}
	for _, v := range all[1:] {
		if err := v.end(t); err != nil {
			t.Fatal(err)
		}
	}
	refused := func(what string, f func() error) {
		t.Helper()
		// The first may have gone to a leader that was about to find itself alone.
		for end := time.Now().Add(patience); ; {
			err := f()
			if errors.Is(err, store.ErrUnavailable) && strings.Contains(err.Error(), "2 of its 3 members must run") {
				return
			}
			if err == nil || time.Now().After(end) || !errors.Is(err, store.ErrUnavailable) && !errors.Is(err, store.ErrUncertain) {
				t.Fatalf("%s without a quorum: %v", what, err)
			}
		}
	}
	n := 0
	refused("a write", func() error {
		n++
		_, err := all[0].Create(t.Context(), fmt.Sprintf("/lost/%d", n), nil, 0)
		return err
	})
	refused("a read", func() error { _, err := all[0].Revision(t.Context()); return err })
	// Others start without a quorum and wait for it.
	back := all[2].again(t)
	back.await(t)
	var err error
	for end := time.Now().Add(patience); time.Now().Before(end); {
		if _, err = all[0].Create(t.Context(), "/lost/after", nil, 0); err == nil || errors.As(err, new(*store.ExistsError)) {
			break
		}
		if !errors.Is(err, store.ErrUnavailable) && !errors.Is(err, store.ErrUncertain) {
			break
		}
	}
	if err != nil && !errors.As(err, new(*store.ExistsError)) {
		t.Errorf("a write with two of three: %v", err)
	}
	if _, _, err := back.Get(t.Context(), "/lost/before"); err != nil {
		t.Error(err)
	}
}

// TestPartition: a leader that is cut off from the others loses its office; what only it
// has taken is never acknowledged, and it follows when the cut is mended.
func TestPartition(t *testing.T) {
	all := quorum(t, 3)
	lead := leader(t, all...)
	old, rest := all[lead], []*voter{all[(lead+1)%3], all[(lead+2)%3]}
	for _, o := range rest {
		old.local.CutPeer(o.local.MemberID())
		o.local.CutPeer(old.local.MemberID())
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		_, err := old.Create(t.Context(), "/partition/minority", nil, 0)
		if !errors.Is(err, store.ErrUncertain) && !errors.Is(err, store.ErrUnavailable) {
			t.Errorf("a write on the smaller side: %v", err)
		}
	})
	leader(t, rest...)
	rev, err := rest[0].Create(t.Context(), "/partition/majority", nil, 0)
	if err != nil {
		t.Fatalf("a write on the larger side: %v", err)
	}
	wg.Wait()
	for _, o := range rest {
		old.local.MendPeer(o.local.MemberID())
		o.local.MendPeer(old.local.MemberID())
	}
	for end := time.Now().Add(patience); ; {
		kv, _, err := old.Get(t.Context(), "/partition/majority")
		if err == nil && kv.ModRevision == rev {
			break
		}
		if !errors.Is(err, store.ErrUnavailable) || time.Now().After(end) {
			t.Fatalf("the former leader reads at %d, want %d: %v", kv.ModRevision, rev, err)
		}
	}
	if n := leader(t, all...); n == lead {
		t.Log("the former leader leads again")
	}
}

// TestRemovedMember says so, stops, and says so again when it is started.
func TestRemovedMember(t *testing.T) {
	for _, running := range []bool{true, false} {
		t.Run(fmt.Sprintf("running=%v", running), func(t *testing.T) {
			all := quorum(t, 3)
			gone := all[2]
			id := uint64(gone.local.MemberID())
			if !running {
				if err := gone.end(t); err != nil {
					t.Fatal(err)
				}
			}
			admin, err := Dial(all[0].cfg.Quorum.Access(), all[0].cfg.Quorum.clientURL())
			if err != nil {
				t.Fatal(err)
			}
			defer admin.Close()
			for end := time.Now().Add(patience); ; { // etcd wants to see the others well for some seconds first
				if err = admin.Remove(t.Context(), id); err == nil || time.Now().After(end) {
					break
				}
			}
			if err != nil {
				t.Fatal(err)
			}
			if !running {
				gone = gone.again(t)
			}
			select {
			case err := <-gone.done:
				gone.done <- err
				if !errors.Is(err, ErrRemoved) {
					t.Errorf("a member that was removed ends with %v", err)
				}
			case <-time.After(patience):
				t.Fatal("a member that was removed goes on")
			}
			again := gone.again(t)
			if err := <-again.done; !errors.Is(err, ErrRemoved) {
				t.Errorf("started again it ends with %v", err)
			}
			again.done <- nil
			if !Removed(gone.cfg.DataDir) {
				t.Error("its data directory does not tell")
			}
			if _, err := all[0].Create(t.Context(), "/removed", nil, 0); err != nil {
				t.Errorf("the others: %v", err)
			}
		})
	}
}

// TestJoinRefused: what cannot join says why, and leaves the members as they were.
func TestJoinRefused(t *testing.T) {
	all := quorum(t, 2)
	first := all[0].cfg.Quorum
	files := tlsFiles{ca: first.CAFile, cert: first.PeerCert, key: first.PeerKey}
	taken := quorumAt(t, files)
	taken.Join = []string{first.clientURL()}
	lost := *all[1].cfg.Quorum
	if err := all[1].end(t); err != nil {
		t.Fatal(err)
	}
	all[1].again(t).await(t).end(t) // it is a member that starts well with its data
	lost.Join = taken.Join
	all[1] = all[1].again(t).await(t)
	for _, c := range []struct {
		name string
		cfg  Config
		want string
	}{
		{"name", Config{Name: "m1", Quorum: taken}, `a member named "m1" already`},
		{"data lost", Config{Name: "m1", Quorum: &lost}, "whose data is not on this machine"},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.cfg.DataDir = t.TempDir()
			cfg := c.cfg
			if err := cfg.complete(); err != nil {
				t.Fatal(err)
			}
			s := &Server{cfg: cfg}
			_, err := s.enlist(t.Context())
			if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "skiff etcd member rm") {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
	if n := len(all[0].local.Cluster().Members()); n != 2 {
		t.Errorf("there are %d members", n)
	}
}

// TestAloneBecomesQuorum: a member that was alone is joined by others once it is told how it
// is reached; told to be alone again while they are there, it refuses.
func TestAloneBecomesQuorum(t *testing.T) {
	dir := t.TempDir()
	alone, stop := run(t, Config{Name: "m0", DataDir: dir})
	if _, err := alone.Create(t.Context(), "/alone", []byte("x"), 0); err != nil {
		t.Fatal(err)
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	files := newAuthority(t).issue(time.Now().Add(time.Hour))
	first := launch(t, Config{Name: "m0", DataDir: dir, Quorum: quorumAt(t, files)}).await(t)
	if cfg := first.local.Cfg; cfg.TickMs != tickMs || cfg.ElectionTicks != electionTicks || cfg.SnapshotCatchUpEntries != catchUpEntries {
		t.Errorf("it is tuned for being alone: %d ms, %d ticks, %d entries", cfg.TickMs, cfg.ElectionTicks, cfg.SnapshotCatchUpEntries)
	}
	second := Config{Name: "m1", DataDir: t.TempDir(), Quorum: quorumAt(t, files)}
	second.Quorum.Join = []string{first.cfg.Quorum.clientURL()}
	joined := launch(t, second).await(t)
	if _, _, err := joined.Get(t.Context(), "/alone"); err != nil {
		t.Error(err)
	}
	if err := joined.end(t); err != nil {
		t.Error(err)
	}
	if err := first.end(t); err != nil {
		t.Error(err)
	}
	single := launch(t, Config{Name: "m0", DataDir: dir})
	select {
	case err := <-single.done:
		single.done <- err
		if err == nil || !strings.Contains(err.Error(), "one of 2 members") {
			t.Errorf("one of two told to be alone ends with %v", err)
		}
	case <-time.After(patience):
		t.Error("one of two is told to be alone, and goes on")
	}
}
