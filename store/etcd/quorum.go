package etcd

import (
	"errors"
	"fmt"
	"net/netip"
	"os"

	"go.etcd.io/etcd/client/pkg/v3/transport"
)

// Quorum is how the members of a cluster of several reach each other: by TLS alone, with
// certificates of one CA on both sides.
type Quorum struct {
	// Peer and Client are where other members and clients find this one, and where it listens.
	Peer, Client netip.AddrPort
	// CAFile verifies whoever connects, and to whom is connected.
	CAFile string
	// PeerCert and PeerKey are shown to members, ServerCert and ServerKey to clients,
	// ClientCert and ClientKey by this process as a client, which it is when it joins.
	PeerCert, PeerKey     string
	ServerCert, ServerKey string
	ClientCert, ClientKey string
	// Token goes into the ids of a new cluster and its members; empty: etcd's default.
	Token string
	// Join are the client URLs of members of the cluster to join. They count only as long as
	// the data directory holds no member.
	Join []string
}

func (q *Quorum) check() error {
	for _, a := range []struct {
		field   string
		address netip.AddrPort
	}{{"Peer", q.Peer}, {"Client", q.Client}} {
		if !a.address.IsValid() || a.address.Addr().IsUnspecified() {
			return fmt.Errorf("etcd: Quorum.%s %s is no address that other members can reach", a.field, a.address)
		}
	}
	for _, f := range []string{q.CAFile, q.PeerCert, q.PeerKey, q.ServerCert, q.ServerKey, q.ClientCert, q.ClientKey} {
		if f == "" {
			return errors.New("etcd: Quorum: a file of its certificates is not named")
		}
		if _, err := os.Stat(f); err != nil {
			return fmt.Errorf("etcd: certificates of the quorum: %w", err)
		}
	}
	return nil
}

func (q *Quorum) peerURL() string   { return "https://" + q.Peer.String() }
func (q *Quorum) clientURL() string { return "https://" + q.Client.String() }

// peerTLS also says where connections come from: members check that the certificate they are
// shown is for the address that shows it, and a host may have others.
func (q *Quorum) peerTLS() transport.TLSInfo {
	return transport.TLSInfo{CertFile: q.PeerCert, KeyFile: q.PeerKey, TrustedCAFile: q.CAFile, ClientCertAuth: true, LocalAddr: q.Peer.Addr().String()}
}

func (q *Quorum) serverTLS() transport.TLSInfo {
	return transport.TLSInfo{CertFile: q.ServerCert, KeyFile: q.ServerKey, TrustedCAFile: q.CAFile, ClientCertAuth: true}
}

// Access is how this host's processes speak to members as clients.
func (q *Quorum) Access() Access {
	return Access{CAFile: q.CAFile, CertFile: q.ClientCert, KeyFile: q.ClientKey}
}
