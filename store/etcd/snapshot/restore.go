package snapshot

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/client/pkg/v3/types"
	"go.etcd.io/etcd/server/v3/etcdserver/api/membership"
	"go.etcd.io/etcd/server/v3/etcdserver/cindex"
	"go.etcd.io/etcd/server/v3/storage/backend"
	"go.etcd.io/etcd/server/v3/storage/datadir"
	"go.etcd.io/etcd/server/v3/storage/mvcc"
	"go.etcd.io/etcd/server/v3/storage/schema"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.etcd.io/etcd/server/v3/storage/wal/walpb"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"
)

// Restoration says what becomes of a snapshot.
type Restoration struct {
	// Snapshot is the file; DataDir is made, and must not be there.
	Snapshot, DataDir string
	// Name and PeerURL are the only member's of the new cluster, Token goes into its id: members
	// of the cluster that the snapshot is of never take it for one of theirs.
	Name, PeerURL, Token string
	// BumpRevision is by how much the store's revision jumps, and all before is compacted. Those
	// who watched the old cluster have seen revisions that the snapshot does not know, and would
	// otherwise wait for them or miss what has them anew.
	BumpRevision int64
	// SkipHash takes a file without a hash, such as the database of a member that is down.
	SkipHash bool
}

// Restore makes the data directory of a member that is alone, whole or not at all.
func Restore(r Restoration) (err error) {
	if there, err := exists(r.DataDir); err != nil || there {
		return errors.Join(err, fmt.Errorf("restore to %s: there is data already; move it away first", r.DataDir))
	}
	if r.BumpRevision < 0 {
		return fmt.Errorf("restore to %s: a revision cannot be bumped by %d", r.DataDir, r.BumpRevision)
	}
	info, err := Status(r.Snapshot)
	if err != nil {
		return err
	}
	if !info.Checked && !r.SkipHash {
		return fmt.Errorf("snapshot %s: %w", r.Snapshot, ErrNoHash)
	}
	part := r.DataDir + ".part"
	if err := os.RemoveAll(part); err != nil {
		return fmt.Errorf("restore to %s: %w", r.DataDir, err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("restore to %s: %w", r.DataDir, err), os.RemoveAll(part))
		}
	}()
	if err := copyDatabase(r.Snapshot, datadir.ToBackendFileName(part), info.Checked); err != nil {
		return err
	}
	if err := r.fill(part, info.Revision); err != nil {
		return err
	}
	if err := os.Rename(part, r.DataDir); err != nil {
		return err
	}
	return syncDir(filepath.Dir(r.DataDir))
}

func copyDatabase(from, to string, hashed bool) error {
	if err := os.MkdirAll(filepath.Dir(to), 0o700); err != nil {
		return err
	}
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	st, err := in.Stat()
	if err != nil {
		return err
	}
	size := st.Size()
	if hashed {
		size -= sha256.Size
	}
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.CopyN(out, in, size)
	return errors.Join(err, out.Sync(), out.Close())
}

// The log of a new member begins with the entry that makes it one.
const firstIndex, firstTerm = 1, 1

// segment is set once: it is a variable of etcd's that its logs are preallocated by.
var segment = sync.OnceFunc(func() { wal.SegmentSizeBytes = 8 << 20 })

// fill makes the copied database that of the new cluster, and the log that goes with it.
func (r *Restoration) fill(dir string, revision int64) error {
	urls, err := types.NewURLs([]string{r.PeerURL})
	if err != nil {
		return fmt.Errorf("peer URL: %w", err)
	}
	cluster, err := membership.NewClusterFromURLsMap(quiet, r.Token, types.URLsMap{r.Name: urls})
	if err != nil {
		return err
	}
	member := cluster.MemberByName(r.Name)
	voters := &raftpb.ConfState{Voters: []uint64{uint64(member.ID)}}

	be := backend.NewDefaultBackend(quiet, datadir.ToBackendFileName(dir))
	defer be.Close()
	members := schema.NewMembershipBackend(quiet, be)
	if err := members.TrimMembershipFromBackend(); err != nil {
		return fmt.Errorf("forget the former members: %w", err)
	}
	members.MustCreateBackendBuckets()
	members.MustSaveMemberToBackend(member)
	tx := be.BatchTx()
	tx.LockOutsideApply()
	schema.UnsafeCreateMetaBucket(tx)
	schema.MustUnsafeSaveConfStateToBackend(quiet, tx, voters)
	if r.BumpRevision > 0 {
		// etcd takes the higher one of this and the last revision that it finds.
		mvcc.UnsafeSetScheduledCompact(tx, revision+r.BumpRevision)
	}
	tx.Unlock()
	cindex.UpdateConsistentIndexForce(tx, firstIndex, firstTerm)
	be.ForceCommit()
	return writeLog(dir, member, uint64(cluster.ID()), voters)
}

func writeLog(dir string, member *membership.Member, cluster uint64, voters *raftpb.ConfState) error {
	segment()
	id := uint64(member.ID)
	head, err := proto.Marshal(&pb.Metadata{NodeID: &id, ClusterID: &cluster})
	if err != nil {
		return err
	}
	self, err := json.Marshal(member)
	if err != nil {
		return err
	}
	change, err := proto.Marshal(&raftpb.ConfChange{Type: raftpb.ConfChangeAddNode.Enum(), NodeId: &id, Context: self})
	if err != nil {
		return err
	}
	w, err := wal.Create(quiet, datadir.ToWALDir(dir), head)
	if err != nil {
		return fmt.Errorf("make the log: %w", err)
	}
	index, term := uint64(firstIndex), uint64(firstTerm)
	err = w.Save(&raftpb.HardState{Term: &term, Vote: &id, Commit: &index},
		[]*raftpb.Entry{{Type: raftpb.EntryConfChange.Enum(), Term: &term, Index: &index, Data: change}})
	if err == nil {
		err = w.SaveSnapshot(&walpb.Snapshot{Index: &index, Term: &term, ConfState: voters})
	}
	if err = errors.Join(err, w.Close()); err != nil {
		return fmt.Errorf("write the log: %w", err)
	}
	return nil
}
