package cluster

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/skiff-k8s/skiff/api/builtin"
)

func TestKeepIn(t *testing.T) {
	none := filepath.Join(t.TempDir(), "etcd")
	member := t.TempDir()
	a := &ExternalEtcd{Servers: []string{"http://192.0.2.1:2379"}}
	b := &ExternalEtcd{Servers: []string{"http://192.0.2.1:2379", "http://192.0.2.2:2379"}}
	other := &ExternalEtcd{Servers: a.Servers, Prefix: "/other"}
	bad := &ExternalEtcd{Servers: []string{"192.0.2.1"}}
	for name, test := range map[string]struct {
		has, wanted *ExternalEtcd
		dir         string
		changed     bool
		err         string
	}{
		"embedded stays":    {nil, nil, member, false, ""},
		"new on external":   {nil, a, none, true, ""},
		"said again":        {a, a, none, false, ""},
		"said no more":      {a, nil, none, false, ""},
		"more servers":      {a, b, none, true, ""},
		"not from embedded": {nil, a, member, false, "keeps its state in its data directory"},
		"not elsewhere":     {a, other, none, false, "--etcd-prefix=/other/: this cluster's keys are below /registry/"},
		"the same prefix":   {a, &ExternalEtcd{Servers: a.Servers, Prefix: "registry/"}, none, false, ""},
		"checked":           {nil, bad, none, false, "--etcd-servers"},
	} {
		t.Run(name, func(t *testing.T) {
			c := &Config{Etcd: test.has}
			changed, err := c.keepIn(test.wanted, test.dir)
			if (err != nil) != (test.err != "") || err != nil && !strings.Contains(err.Error(), test.err) {
				t.Fatalf("error %v, want %q", err, test.err)
			}
			if changed != test.changed || changed && c.Etcd != test.wanted {
				t.Errorf("changed: %v, to %+v", changed, c.Etcd)
			}
		})
	}
}

func TestKeyPrefix(t *testing.T) {
	for prefix, want := range map[string]string{"": "/registry/", "/registry": "/registry/", "a": "/a/", "/a/b/": "/a/b/", "/": "/registry/"} {
		if got := (&ExternalEtcd{Prefix: prefix}).keyPrefix(); got != want {
			t.Errorf("--etcd-prefix=%s: keys begin with %s, want %s", prefix, got, want)
		}
	}
}

func TestEventTTL(t *testing.T) {
	resources := builtin.Resources()
	(&StoreConfig{EventTTL: time.Minute}).expire(resources)
	found := 0
	for _, r := range resources {
		if r.TTL == nil {
			continue
		}
		found++
		if ttl := r.TTL(r.New()); ttl != time.Minute {
			t.Errorf("%s live %v", r.GR(), ttl)
		}
	}
	if found != 2 {
		t.Errorf("%d resources expire, want the two of events", found)
	}
	for _, r := range builtin.Resources() {
		if r.TTL != nil && r.TTL(r.New()) != time.Hour {
			t.Errorf("%s of others live %v", r.GR(), r.TTL(r.New()))
		}
	}
}

func TestExternalEtcdFiles(t *testing.T) {
	e := ExternalEtcd{CAFile: "ca.crt"}
	if err := e.Absolute(); err != nil {
		t.Fatal(err)
	}
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	if e.CAFile != filepath.Join(here, "ca.crt") || e.CertFile != "" {
		t.Errorf("%+v", e)
	}
}
