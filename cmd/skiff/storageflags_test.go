package main

import (
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
)

func TestStorageFlags(t *testing.T) {
	for args, want := range map[string]struct {
		err      string
		external string // its first server
		prefix   string
		compact  time.Duration
	}{
		"":                                   {err: "--etcd-servers is required"},
		"--etcd-data-dir=/d":                 {compact: 5 * time.Minute},
		"--etcd-data-dir=/d --event-ttl=0s":  {err: "--event-ttl"},
		"--etcd-data-dir=/d --etcd-prefix=x": {err: "--etcd-servers, which is missing"},
		"--etcd-data-dir=/d --etcd-servers=http://a:1":                     {err: "exclude each other"},
		"--etcd-servers=http://a:1,http://b:1":                             {external: "http://a:1", compact: 5 * time.Minute},
		"--etcd-servers=http://a:1 --etcd-prefix=registry/":                {external: "http://a:1", compact: 5 * time.Minute},
		"--etcd-servers=http://a:1 --etcd-prefix=/":                        {err: "must not be empty"},
		"--etcd-servers=http://a:1 --etcd-prefix=/x":                       {external: "http://a:1", prefix: "/x", compact: 5 * time.Minute},
		"--etcd-servers=http://a:1 --etcd-compaction-interval=0":           {external: "http://a:1", compact: -1},
		"--etcd-servers=http://a:1 --etcd-compaction-interval=1h":          {external: "http://a:1", compact: time.Hour},
		"--etcd-servers=http://a:1 --etcd-compaction-interval=-1s":         {err: "--etcd-compaction-interval"},
		"--etcd-servers=https://a:1 --etcd-cafile=/ca --event-ttl=2h45m0s": {external: "https://a:1", compact: 5 * time.Minute},
	} {
		t.Run(args, func(t *testing.T) {
			var s storageFlags
			flags := pflag.NewFlagSet("", pflag.ContinueOnError)
			s.bind(flags)
			if err := flags.Parse(strings.Fields(args)); err != nil {
				t.Fatal(err)
			}
			c, err := s.config()
			if (err != nil) != (want.err != "") || err != nil && !strings.Contains(err.Error(), want.err) {
				t.Fatalf("error %v, want %q", err, want.err)
			}
			if err != nil {
				return
			}
			external, prefix := "", ""
			if c.External != nil {
				external, prefix = c.External.Servers[0], c.External.Prefix
			}
			if external != want.external || prefix != want.prefix || c.CompactInterval != want.compact {
				t.Errorf("%+v on %s below %s", c, external, prefix)
			}
		})
	}
}
