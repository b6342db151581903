package cluster

import (
	"context"
	"log/slog"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"

	localpathapi "github.com/skiff-k8s/skiff/api/localpath"
	"github.com/skiff-k8s/skiff/component"
	"github.com/skiff-k8s/skiff/controllers/controller"
	provisioner "github.com/skiff-k8s/skiff/controllers/localpath"
	"github.com/skiff-k8s/skiff/kubelet/localpath"
)

// LocalPathVolumes is where a node keeps its local-path volumes.
func (p Paths) LocalPathVolumes() string { return filepath.Join(p.Dir, "volumes") }

// newProvisioner makes what provisions local-path volumes. It stands beside the controllers, as
// external provisioners do, so that it also serves a cluster whose controllers are upstream's.
func newProvisioner(client kubernetes.Interface, shared func() informers.SharedInformerFactory, log *slog.Logger) component.Component {
	return component.Func(func(ctx context.Context) error {
		events := record.NewBroadcaster(record.WithContext(ctx))
		defer events.Shutdown()
		events.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: client.CoreV1().Events("")})
		factory := shared()
		c, err := provisioner.New(controller.Config{
			Client: client, Informers: factory, Clock: clock.RealClock{}, Logger: log,
			Events: events.NewRecorder(scheme.Scheme, corev1.EventSource{Component: localpathapi.Provisioner}),
		})
		if err != nil {
			return err
		}
		return runWith(ctx, factory, c)
	})
}

// newLocalPath makes the node's part.
func newLocalPath(n *NodeConfig, p Paths, client kubernetes.Interface, log *slog.Logger) (component.Component, error) {
	return localpath.New(localpath.Config{NodeName: n.NodeName, Directory: p.LocalPathVolumes(), Client: client, Logger: log.With("component", "local-path")})
}
