package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/skiff-k8s/skiff/cluster/process"
	"github.com/skiff-k8s/skiff/store/etcd"
	"github.com/skiff-k8s/skiff/store/etcd/snapshot"
)

// SnapshotStatus checks a snapshot, and tells what is in it.
func SnapshotStatus(file string) (snapshot.Info, error) { return snapshot.Status(file) }

// SaveSnapshot copies the cluster's state to a file while it is used.
func SaveSnapshot(ctx context.Context, c *Config, p Paths, file string) (snapshot.Info, error) {
	admin, err := EtcdAdmin(c, p)
	if err != nil {
		return snapshot.Info{}, err
	}
	defer admin.Close()
	from, err := admin.Snapshot(ctx)
	if err != nil {
		return snapshot.Info{}, err
	}
	_, err = snapshot.Save(from, file)
	if err = errors.Join(err, from.Close()); err != nil {
		return snapshot.Info{}, err
	}
	return snapshot.Status(file)
}

// DefaultBump is by how much revisions jump at a restore: more than were made since the snapshot.
const DefaultBump = 1_000_000_000

// RestoreSnapshot makes the state of a snapshot that of the cluster in a data directory, whose
// etcd has one member then. What was there is moved aside, and returned where to.
func RestoreSnapshot(c *Config, p Paths, file string, bump int64, skipHash bool) (aside string, err error) {
	if c.Etcd != nil {
		return "", errors.New("this cluster keeps its state in an etcd that others run (--etcd-servers): restore it with etcdutl")
	}
	pid, err := process.Running(p.Lock(ControlPlane))
	if err != nil {
		return "", err
	}
	if pid != 0 {
		return "", fmt.Errorf("the control plane in %s runs (pid %d): end it first, and those of the other machines", p.Dir, pid)
	}
	fresh := p.Etcd() + ".restored"
	if err := os.RemoveAll(fresh); err != nil {
		return "", fmt.Errorf("restore: %w", err)
	}
	peer, token := etcd.AlonePeerURL, c.ID
	if q := c.quorum(p); q != nil {
		peer = "https://" + q.Peer.String()
	}
	if id, err := randomID(); err == nil {
		token += "-" + id // it is another cluster than the one that the snapshot is of
	}
	if err := snapshot.Restore(snapshot.Restoration{
		Snapshot: file, DataDir: fresh, Name: c.NodeName, PeerURL: peer, Token: token, BumpRevision: bump, SkipHash: skipHash,
	}); err != nil {
		return "", err
	}
	if _, err := os.Stat(p.Etcd()); err == nil {
		aside = p.Etcd() + ".before-" + time.Now().UTC().Format("20060102T150405Z")
		if err := os.Rename(p.Etcd(), aside); err != nil {
			return "", fmt.Errorf("restore: move the former state aside: %w", err)
		}
	}
	if err := os.Rename(fresh, p.Etcd()); err != nil {
		return aside, fmt.Errorf("restore: %w", err)
	}
	return aside, nil
}
