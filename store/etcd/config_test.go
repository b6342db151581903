package etcd

import (
	"net/url"
	"reflect"
	"testing"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	"go.etcd.io/etcd/pkg/v3/featuregate"
	"go.etcd.io/etcd/server/v3/config"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/features"
	"go.uber.org/zap"
)

// meant are the fields in which our configuration differs from what etcd's embed
// package passes to etcdserver by default, each with its reason.
var meant = map[string]string{
	"DataDir":                "each has its own",
	"ClientURLs":             "no client listener: callers are in the process",
	"PeerURLs":               "embed listens on them, so that the test has to choose free ports",
	"InitialPeerURLsMap":     "as PeerURLs",
	"TickMs":                 "single member: elections have one outcome, so the start need not wait for one",
	"ElectionTicks":          "as TickMs",
	"SnapshotCount":          "single member: fewer entries in memory, nobody catches up from them",
	"SnapshotCatchUpEntries": "as SnapshotCount",
	"QuotaBackendBytes":      "etcd's default, spelled out: 0 means the same 2 GiB",
	"CORS":                   "no HTTP front end",
	"HostWhitelist":          "no HTTP front end",
	"EnableGRPCGateway":      "no HTTP front end",
	"AuthToken":              "no users of etcd: its callers are in the process",
	"Logger":                 "etcd's messages go to slog",
	"ServerFeatureGate":      "compared gate by gate below",
	"DiscoveryCfg":           "the members are known",
	"PeerTLSInfo":            "no peers, and embed notes its LocalAddress there",
}

// meantOfQuorum are those of a member of several: nothing that is about members may differ.
var meantOfQuorum = map[string]string{
	"DataDir":           meant["DataDir"],
	"QuotaBackendBytes": meant["QuotaBackendBytes"],
	"CORS":              meant["CORS"],
	"HostWhitelist":     meant["HostWhitelist"],
	"EnableGRPCGateway": meant["EnableGRPCGateway"],
	"AuthToken":         "no users of etcd: whoever has a certificate of its CA may do all",
	"Logger":            meant["Logger"],
	"ServerFeatureGate": meant["ServerFeatureGate"],
	"DiscoveryCfg":      meant["DiscoveryCfg"],
	"PeerTLSInfo":       "has functions, which are never equal; compared file by file below",
}

func TestConfigEqualsEmbed(t *testing.T) {
	c := embedConfig(t)
	free := url.URL{Scheme: "http", Host: "127.0.0.1:0"}
	c.ListenPeerUrls, c.ListenClientUrls = []url.URL{free}, []url.URL{free}
	c.AdvertisePeerUrls, c.AdvertiseClientUrls = []url.URL{free}, []url.URL{free}
	compareWithEmbed(t, c, Config{DataDir: t.TempDir()}, meant)
}

func TestQuorumConfigEqualsEmbed(t *testing.T) {
	files := newAuthority(t).issue(time.Now().Add(time.Hour))
	q := quorumAt(t, files)
	c := embedConfig(t)
	peer, client := url.URL{Scheme: "https", Host: q.Peer.String()}, url.URL{Scheme: "https", Host: q.Client.String()}
	c.ListenPeerUrls, c.ListenClientUrls = []url.URL{peer}, []url.URL{client}
	c.AdvertisePeerUrls, c.AdvertiseClientUrls = []url.URL{peer}, []url.URL{client}
	info := transport.TLSInfo{CertFile: files.cert, KeyFile: files.key, TrustedCAFile: files.ca, ClientCertAuth: true}
	c.PeerTLSInfo, c.ClientTLSInfo = info, info
	ours, theirs := compareWithEmbed(t, c, Config{DataDir: t.TempDir(), Quorum: q}, meantOfQuorum)
	for _, f := range []func(transport.TLSInfo) any{
		func(i transport.TLSInfo) any { return i.CertFile },
		func(i transport.TLSInfo) any { return i.KeyFile },
		func(i transport.TLSInfo) any { return i.TrustedCAFile },
		func(i transport.TLSInfo) any { return i.ClientCertAuth },
		func(i transport.TLSInfo) any { return i.SkipClientSANVerify },
		func(i transport.TLSInfo) any { return i.InsecureSkipVerify },
		func(i transport.TLSInfo) any { return i.AllowedCNs },
	} {
		if a, b := f(ours.PeerTLSInfo), f(theirs.PeerTLSInfo); !reflect.DeepEqual(a, b) {
			t.Errorf("TLS between members: %v, embed has %v", a, b)
		}
	}
}

func embedConfig(t *testing.T) *embed.Config {
	c := embed.NewConfig()
	c.Dir = t.TempDir()
	c.LogLevel = "panic"
	return c
}

func compareWithEmbed(t *testing.T, c *embed.Config, cfg Config, meant map[string]string) (ours, theirs config.ServerConfig) {
	t.Helper()
	c.InitialCluster = c.InitialClusterFromName(c.Name)
	e, err := embed.StartEtcd(c)
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	theirs = e.Server.Cfg

	if err := cfg.complete(); err != nil {
		t.Fatal(err)
	}
	if ours, err = serverConfig(cfg, nil, zap.NewNop()); err != nil {
		t.Fatal(err)
	}
	a, b := reflect.ValueOf(ours), reflect.ValueOf(theirs)
	for i := range a.NumField() {
		field := reflect.TypeFor[config.ServerConfig]().Field(i)
		same := reflect.DeepEqual(a.Field(i).Interface(), b.Field(i).Interface())
		reason, listed := meant[field.Name]
		switch {
		case same && listed && field.Name != "ServerFeatureGate":
			t.Errorf("%s is the same as embed's: take it off the list", field.Name)
		case !same && !listed:
			t.Errorf("%s is %v, embed has %v: not a difference that is meant", field.Name, a.Field(i), b.Field(i))
		case !same:
			t.Logf("%s: %v instead of %v: %s", field.Name, a.Field(i), b.Field(i), reason)
		}
	}
	if ours, theirs := gates(ours), gates(theirs); !reflect.DeepEqual(ours, theirs) {
		t.Errorf("feature gates are %v, embed has %v", ours, theirs)
	}
	return ours, theirs
}

func gates(c config.ServerConfig) map[featuregate.Feature]bool {
	on := map[featuregate.Feature]bool{}
	for gate := range features.DefaultEtcdServerFeatureGates {
		on[gate] = c.ServerFeatureGate.Enabled(gate)
	}
	return on
}
