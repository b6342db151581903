package etcd

import (
	"context"
	"net/url"
	"testing"

	"go.etcd.io/etcd/server/v3/embed"

	"github.com/skiff-k8s/skiff/store"
	"github.com/skiff-k8s/skiff/store/storetest"
)

func TestClient(t *testing.T) {
	c := embed.NewConfig()
	c.Dir = t.TempDir()
	c.LogLevel = "panic"
	c.TickMs, c.ElectionMs = 20, 100
	free := url.URL{Scheme: "http", Host: "127.0.0.1:0"}
	c.ListenPeerUrls, c.ListenClientUrls = []url.URL{free}, []url.URL{free}
	c.AdvertisePeerUrls, c.AdvertiseClientUrls = []url.URL{free}, []url.URL{free}
	c.InitialCluster = c.InitialClusterFromName(c.Name)
	e, err := embed.StartEtcd(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	<-e.Server.ReadyNotify()

	s, err := Dial(ClientConfig{Endpoints: []string{"http://" + e.Clients[0].Addr().String()}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	storetest.Run(t, func(t *testing.T) store.Store { return s })
}
