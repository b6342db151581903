package etcd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"go.etcd.io/etcd/client/pkg/v3/types"
	"go.etcd.io/etcd/server/v3/etcdserver"
	"go.etcd.io/etcd/server/v3/etcdserver/api/membership"
	etcderrors "go.etcd.io/etcd/server/v3/etcdserver/errors"
)

const (
	// enlistTimeout is how long members are tried that cannot be reached or are not well.
	enlistTimeout = time.Minute
	// memberPause lies between two tries to become a member.
	memberPause = time.Second
)

// enlist makes this a learner of the cluster to join, and returns its members, this one
// included. It can be repeated: a member that was added but never started is taken up.
func (s *Server) enlist(ctx context.Context) (types.URLsMap, error) {
	q := s.cfg.Quorum
	admin, err := Dial(q.Access(), q.Join...)
	if err != nil {
		return nil, err
	}
	defer admin.Close()
	ctx, cancel := context.WithTimeout(ctx, enlistTimeout)
	defer cancel()
	told := ""
	for {
		all, err := s.tryEnlist(ctx, admin)
		if err == nil {
			return all, nil
		}
		if !errors.Is(err, errPassing) {
			return nil, err
		}
		if text := err.Error(); text != told {
			told = text
			s.cfg.Logger.Warn("waiting to join etcd", "reason", text)
		}
		pause := s.cfg.Clock.NewTimer(memberPause)
		select {
		case <-pause.C():
		case <-ctx.Done():
			pause.Stop()
			return nil, err
		}
	}
}

// errPassing marks what may be otherwise in a moment.
var errPassing = errors.New("join etcd")

func (s *Server) tryEnlist(ctx context.Context, admin *Admin) (types.URLsMap, error) {
	own := s.cfg.Quorum.peerURL()
	try, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	list, err := admin.client.MemberList(try)
	if err != nil {
		return nil, fmt.Errorf("%w: no member at %s answers: %w", errPassing, strings.Join(s.cfg.Quorum.Join, ", "), err)
	}
	known, err := place(list.Members, s.cfg.Name, own)
	if err != nil {
		return nil, err
	}
	if known {
		return urlsByName(list.Members, s.cfg.Name, own)
	}
	added, err := admin.client.MemberAddAsLearner(try, []string{own})
	switch {
	case err == nil:
		return urlsByName(added.Members, s.cfg.Name, own)
	case errors.Is(err, rpctypes.ErrTooManyLearners):
		return nil, fmt.Errorf("%w: another member joins just now, and etcd takes one at a time: %s", errPassing, learners(list.Members))
	case errors.Is(err, rpctypes.ErrUnhealthy), errors.Is(err, rpctypes.ErrMemberNotEnoughStarted), errors.Is(err, rpctypes.ErrNoLeader), unavailable(err), errors.Is(err, context.DeadlineExceeded):
		return nil, fmt.Errorf("%w: its members are not well enough to take one more: %w", errPassing, err)
	}
	return nil, fmt.Errorf("join etcd: %w", err)
}

// place finds out whether a machine may become a member: true, if it was added before.
func place(members []*pb.Member, name, peerURL string) (known bool, err error) {
	for _, m := range members {
		switch mine := slices.Contains(m.PeerURLs, peerURL); {
		case mine && m.Name != "":
			return false, fmt.Errorf("etcd has a member at %s already (%s, id %x), whose data is not on this machine: remove it first, on another control plane: skiff etcd member rm %x", peerURL, m.Name, m.ID, m.ID)
		case mine:
			return true, nil
		case m.Name == name:
			return false, fmt.Errorf("etcd has a member named %q already, at %s: choose another --node-name, or remove that one first: skiff etcd member rm %x", name, strings.Join(m.PeerURLs, ","), m.ID)
		}
	}
	return false, nil
}

func learners(members []*pb.Member) string {
	var out []string
	for _, m := range members {
		if m.IsLearner {
			out = append(out, fmt.Sprintf("%s (id %x)", strings.Join(m.PeerURLs, ","), m.ID))
		}
	}
	return strings.Join(out, ", ")
}

// urlsByName is the list as a member is started with. Those that have not started have no
// name yet; any will do for them.
func urlsByName(members []*pb.Member, name, peerURL string) (types.URLsMap, error) {
	out := types.URLsMap{}
	for _, m := range members {
		u, err := types.NewURLs(m.PeerURLs)
		if err != nil {
			return nil, fmt.Errorf("peer URLs of etcd's member %x: %w", m.ID, err)
		}
		switch {
		case slices.Contains(m.PeerURLs, peerURL):
			out[name] = u
		case m.Name == "":
			out[fmt.Sprintf("%x", m.ID)] = u
		default:
			out[m.Name] = u
		}
	}
	return out, nil
}

// promote makes a learner a voter as soon as it has caught up.
func (s *Server) promote(ctx context.Context, etcd *etcdserver.EtcdServer) error {
	if !etcd.IsLearner() {
		return nil
	}
	s.cfg.Logger.Info("catching up with etcd's other members")
	t := s.cfg.Clock.NewTicker(memberPause)
	defer t.Stop()
	for etcd.IsLearner() {
		try, cancel := context.WithTimeout(ctx, requestTimeout)
		_, err := etcd.PromoteMember(try, uint64(etcd.MemberID()))
		cancel()
		switch {
		case err == nil, errors.Is(err, etcderrors.ErrLearnerNotReady), ctx.Err() != nil:
		case errors.Is(err, membership.ErrMemberNotLearner): // this member has yet to hear of it
		case errors.Is(err, membership.ErrIDNotFound):
			// Removed while it joined: etcd is about to stop.
		default:
			s.cfg.Logger.Warn("becoming a voter of etcd failed; trying again", "err", err)
		}
		select {
		case <-t.C():
		case <-ctx.Done():
			return ctx.Err()
		case <-etcd.StopNotify():
			return errStopped
		}
	}
	return nil
}

var errStopped = errors.New("etcd stopped by itself")

// alone refuses to start one of several members as if there were no others: it would never
// have a quorum, nor say why.
func (s *Server) alone(etcd *etcdserver.EtcdServer) error {
	if n := len(etcd.Cluster().Members()); s.cfg.Quorum == nil && n > 1 {
		return fmt.Errorf("it is one of %d members, and is told to be alone: start it with its address and certificates as before", n)
	}
	return nil
}

// settle makes the membership say how this member is reached.
func (s *Server) settle(ctx context.Context, etcd *etcdserver.EtcdServer) error {
	if s.cfg.Quorum == nil {
		return nil
	}
	own := etcd.Cluster().Member(etcd.MemberID())
	want := []string{s.cfg.Quorum.peerURL()}
	if own == nil || slices.Equal(own.PeerURLs, want) {
		return nil
	}
	s.cfg.Logger.Info("telling etcd's members the new address", "was", own.PeerURLs, "is", want)
	if _, err := etcd.UpdateMember(ctx, membership.Member{ID: own.ID, RaftAttributes: membership.RaftAttributes{PeerURLs: want}}); err != nil {
		return fmt.Errorf("tell etcd's members the address %s: %w", want[0], err)
	}
	return nil
}
