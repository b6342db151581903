package etcd

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"time"

	"go.etcd.io/etcd/server/v3/etcdserver"
	"go.etcd.io/etcd/server/v3/etcdserver/api/etcdhttp"
	"go.etcd.io/etcd/server/v3/etcdserver/api/rafthttp"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3rpc"
	"google.golang.org/grpc"
)

// front is what others reach a member by: other members over HTTP, clients over gRPC.
type front struct {
	log  *slog.Logger
	peer net.Listener // nil: there are no others
	// clients are listeners and how TLS is spoken there; nil: not at all.
	clients map[net.Listener]*tls.Config

	peers   *http.Server
	servers []*grpc.Server
	serving sync.WaitGroup
}

// listen takes the addresses, so that whatever is in the way is told before anything starts.
func listen(c Config) (_ *front, err error) {
	f := &front{log: c.Logger, clients: map[net.Listener]*tls.Config{}}
	defer func() {
		if err != nil {
			f.close()
		}
	}()
	if c.Socket != "" {
		if err := os.MkdirAll(filepath.Dir(c.Socket), 0o755); err != nil {
			return nil, fmt.Errorf("etcd's socket: %w", err)
		}
		// Its owner has the data directory's lock: who was there before is gone.
		if err := os.Remove(c.Socket); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("etcd's socket: %w", err)
		}
		l, err := net.Listen("unix", c.Socket)
		if err != nil {
			return nil, fmt.Errorf("etcd's socket: %w", err)
		}
		f.clients[l] = nil
		if err := os.Chmod(c.Socket, 0o600); err != nil {
			return nil, fmt.Errorf("etcd's socket: %w", err)
		}
	}
	q := c.Quorum
	if q == nil {
		return f, nil
	}
	info := q.peerTLS()
	if f.peer, err = rafthttp.NewListener(url.URL{Scheme: "https", Host: q.Peer.String()}, &info); err != nil {
		return nil, fmt.Errorf("listen for etcd's members at %s: %w", q.Peer, err)
	}
	server := q.serverTLS()
	conf, err := server.ServerConfig()
	if err != nil {
		return nil, fmt.Errorf("certificate of etcd's clients' port: %w", err)
	}
	l, err := net.Listen("tcp", q.Client.String())
	if err != nil {
		return nil, fmt.Errorf("listen for etcd's clients at %s: %w", q.Client, err)
	}
	f.clients[l] = conf
	return f, nil
}

// peerReadTimeout bounds the reading of one request of another member, a snapshot's too; as embed has it.
const peerReadTimeout = 5 * time.Minute

// servePeers answers other members, without which there is no quorum.
func (f *front) servePeers(etcd *etcdserver.EtcdServer) {
	if f.peer == nil {
		return
	}
	f.peers = &http.Server{
		Handler: etcdhttp.NewPeerHandler(etcd.Logger(), etcd), ReadTimeout: peerReadTimeout,
		ErrorLog: log.New(io.Discard, "", 0), // of strangers
	}
	f.serving.Go(func() {
		if err := f.peers.Serve(f.peer); err != nil && !errors.Is(err, http.ErrServerClosed) {
			f.log.Error("serving etcd's members ended", "err", err)
		}
	})
}

// serveClients answers clients.
func (f *front) serveClients(etcd *etcdserver.EtcdServer) {
	for l, conf := range f.clients {
		s := v3rpc.Server(etcd, conf, nil)
		f.servers = append(f.servers, s)
		f.serving.Go(func() {
			if err := s.Serve(l); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
				f.log.Error("serving etcd's clients ended", "address", l.Addr(), "err", err)
			}
		})
	}
}

// endClients sends clients away; members go on.
func (f *front) endClients() {
	for _, s := range f.servers {
		s.Stop()
	}
}

// close ends everything.
func (f *front) close() {
	f.endClients()
	if f.peers != nil {
		// Streams between members never end by themselves.
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		_ = f.peers.Shutdown(ctx)
		_ = f.peers.Close()
	} else if f.peer != nil {
		_ = f.peer.Close()
	}
	for l := range f.clients {
		_ = l.Close() // gRPC has closed it where it served
	}
	f.serving.Wait()
}
