package etcd

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// requestTimeout bounds one request to a member; etcd's own limit is 7 s.
const requestTimeout = 10 * time.Second

// Access is who members are shown, in files.
type Access struct{ CAFile, CertFile, KeyFile string }

func (a Access) tls() (*tls.Config, error) {
	if a == (Access{}) {
		return nil, nil
	}
	info := transport.TLSInfo{CertFile: a.CertFile, KeyFile: a.KeyFile, TrustedCAFile: a.CAFile}
	conf, err := info.ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("certificate for etcd's members: %w", err)
	}
	return conf, nil
}

// Admin changes and copies an etcd by its client API.
type Admin struct {
	client *clientv3.Client
	access Access
}

// Dial prepares connections to members by their client URLs; unix:///path is the socket
// that Config names. Close ends them.
func Dial(a Access, urls ...string) (*Admin, error) {
	conf, err := a.tls()
	if err != nil {
		return nil, err
	}
	client, err := clientv3.New(clientv3.Config{
		Endpoints: urls, TLS: conf, DialTimeout: dialTimeout,
		Logger: zapTo(slog.New(slog.DiscardHandler), func(error) {}),
	})
	if err != nil {
		return nil, fmt.Errorf("etcd client: %w", err)
	}
	return &Admin{client: client, access: a}, nil
}

// Close ends the connections.
func (a *Admin) Close() error {
	if err := a.client.Close(); err != nil && !errors.Is(err, context.Canceled) {
		return fmt.Errorf("close the etcd client: %w", err)
	}
	return nil
}

// MemberInfo is a member as the others know it.
type MemberInfo struct {
	ID         uint64
	Name       string // empty: it has never started
	PeerURLs   []string
	ClientURLs []string
	Learner    bool
}

// Members are those of the cluster, by name.
func (a *Admin) Members(ctx context.Context) ([]MemberInfo, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	list, err := a.client.MemberList(ctx)
	if err != nil {
		return nil, fmt.Errorf("list etcd's members: %w", a.reason(err))
	}
	var out []MemberInfo
	for _, m := range list.Members {
		out = append(out, MemberInfo{ID: m.ID, Name: m.Name, PeerURLs: m.PeerURLs, ClientURLs: m.ClientURLs, Learner: m.IsLearner})
	}
	slices.SortFunc(out, func(x, y MemberInfo) int { return strings.Compare(x.Name, y.Name) })
	return out, nil
}

// reason says what an error of etcd's means to who administers it.
func (a *Admin) reason(err error) error {
	switch {
	case errors.Is(err, rpctypes.ErrNoLeader), errors.Is(err, rpctypes.ErrTimeoutDueToLeaderFail), errors.Is(err, rpctypes.ErrTimeoutDueToConnectionLost), errors.Is(err, rpctypes.ErrTimeout):
		return fmt.Errorf("etcd has lost its quorum: more than half of its members must run and reach each other (%w)", err)
	case errors.Is(err, rpctypes.ErrUnhealthy), errors.Is(err, rpctypes.ErrMemberNotEnoughStarted):
		return fmt.Errorf("too few of etcd's members would be left that are well: start those that are down first (%w)", err)
	case errors.Is(err, context.DeadlineExceeded), unavailable(err):
		return fmt.Errorf("etcd at %s does not answer: it is not running, or has lost its quorum (%w)", strings.Join(a.client.Endpoints(), ", "), err)
	}
	return err
}

// Remove takes a member away for ever: its data is of no use any more.
func (a *Admin) Remove(ctx context.Context, id uint64) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	if _, err := a.client.MemberRemove(ctx, id); err != nil {
		return fmt.Errorf("remove etcd's member %x: %w", id, a.reason(err))
	}
	return nil
}

// Status is how a member is.
type Status struct {
	ID, Leader uint64
	Version    string
	DBSize     int64
	Revision   int64
	RaftIndex  uint64
	// Errors are alarms: of space, or of data that differs from other members'.
	Errors []string
}

// Status asks the member at one URL.
func (a *Admin) Status(ctx context.Context, url string) (Status, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	r, err := a.client.Status(ctx, url)
	if err != nil {
		return Status{}, fmt.Errorf("ask etcd's member at %s: %w", url, err)
	}
	return Status{ID: r.Header.MemberId, Leader: r.Leader, Version: r.Version, DBSize: r.DbSize, Revision: r.Header.Revision, RaftIndex: r.RaftIndex, Errors: r.Errors}, nil
}

// Snapshot copies the database of the member that answers: its pages and then their SHA-256.
func (a *Admin) Snapshot(ctx context.Context) (io.ReadCloser, error) {
	r, err := a.client.Snapshot(ctx)
	if err != nil {
		return nil, fmt.Errorf("copy etcd's database: %w", a.reason(err))
	}
	return r, nil
}
