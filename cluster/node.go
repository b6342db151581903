package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/skiff-k8s/skiff/cluster/process"
	"github.com/skiff-k8s/skiff/component"
	"github.com/skiff-k8s/skiff/containers"
	"github.com/skiff-k8s/skiff/network/dns"
)

// RunNode runs the kubelet, the container runtime, the proxy, DNS and the pod network
// of the node in dir until ctx ends. Containers and rules stay as they are then.
func RunNode(ctx context.Context, dir string) error {
	n, credentials, err := nodeOf(dir)
	if err != nil {
		return err
	}
	// Volumes' files get their modes from us, not from the shell that started skiff.
	syscall.Umask(0o022)
	p := Paths{dir}
	lock, err := process.Lock(p.Lock(Node))
	if err != nil {
		return err
	}
	defer lock.Close()
	creds, err := credentials()
	if err != nil {
		return err
	}
	log := newLogger()
	node, err := newNode(n, p, creds, log)
	if err != nil {
		return err
	}
	if err := addPortMaps(node, p, log); err != nil {
		return err
	}
	return node.Run(ctx)
}

// newNode composes a node; nothing runs before the group does, but the bridge is as the last run left it.
func newNode(n *NodeConfig, p Paths, creds *NodeCredentials, log *slog.Logger) (*component.Group, error) {
	client, err := n.client(creds)
	if err != nil {
		return nil, err
	}
	shared := serviceInformers(client)
	group := component.NewGroup(log)
	// What needs the API server, which may come later or go away for a while.
	clients, err := creds.renewal(n, client, log.With("component", "certificates"))
	if err != nil {
		return nil, err
	}
	setZone := func(string) {}
	if !n.lacks(Proxy) {
		px, members, err := n.proxyMembers(p, client, shared, log.With("component", "proxy"))
		if err != nil {
			return nil, err
		}
		setZone = px.SetZone
		clients = append(clients, members...)
		balancers, err := newAnnouncer(n, shared, log.With("component", "load balancers"))
		if err != nil {
			return nil, err
		}
		clients = append(clients, component.Member{Name: "load balancers", Component: balancers})
	}
	if !n.lacks(Kubelet) {
		more, err := newPodNode(n, p, creds, client, shared, setZone, group, log)
		if err != nil {
			return nil, err
		}
		clients = append(clients, more...)
	}
	group.Add(component.Member{Name: "informers", Background: true, Component: component.Func(func(ctx context.Context) error {
		shared.StartWithContext(ctx)
		<-ctx.Done()
		shared.Shutdown()
		return nil
	})})
	for _, m := range clients {
		m.Background = true
		group.Add(m)
	}
	group.Add(trim())
	return group, nil
}

// newPodNode composes what runs pods: runtime, pod network with DNS, kubelet. The runtime
// joins group; what talks to the API server is returned.
func newPodNode(n *NodeConfig, p Paths, creds *NodeCredentials, client kubernetes.Interface, shared informers.SharedInformerFactory, setZone func(string), group *component.Group, log *slog.Logger) ([]component.Member, error) {
	sandboxes, err := newSandboxNetwork(n, p, log.With("component", "network"))
	if err != nil {
		return nil, err
	}
	if sandboxes.policies, err = newPolicies(n, client, log.With("component", "network policy")); err != nil {
		return nil, err
	}
	upstreams, err := upstreamResolvers(n.resolvConf())
	if err != nil {
		return nil, err
	}
	names, err := dns.New(dns.Config{Domain: n.Domain, Informers: shared, Upstreams: upstreams, Logger: log.With("component", "dns")})
	if err != nil {
		return nil, err
	}
	network, err := newPodNetwork(n, client, sandboxes.bridge, names, setZone, log.With("component", "network"))
	if err != nil {
		return nil, err
	}
	kubelet, err := newKubelet(n, p, creds, log.With("component", "kubelet"))
	if err != nil {
		return nil, err
	}
	var members []component.Member
	if n.RuntimeEndpoint != "" {
		members = append(members, component.Member{Name: "CNI configuration", Component: n.runtimeCNI(p, sandboxes.bridge, log.With("component", "network"))})
	} else {
		cri, err := containers.New(n.runtimeConfig(p, sandboxes, log.With("component", "containers")))
		if err != nil {
			return nil, err
		}
		// A kubelet that finds no runtime reports its node NotReady, and the node lifecycle
		// controller then takes Ready from pods that never stopped running.
		group.Add(component.Member{Name: "containers", Component: cri, Ready: func(ctx context.Context) error { return waitSocket(ctx, p.CRISocket()) }})
	}
	volumes, err := newLocalPath(n, p, client, log)
	if err != nil {
		return nil, err
	}
	return append(members,
		component.Member{Name: "local-path", Component: volumes},
		component.Member{Name: "network", Component: network},
		n.policyMember(sandboxes.policies),
		component.Member{Name: "kubelet", Component: kubelet},
	), nil
}

// waitSocket returns once something serves a unix socket.
func waitSocket(ctx context.Context, path string) error {
	return poll(ctx, 2*time.Millisecond, func(ctx context.Context) error {
		conn, err := (&net.Dialer{}).DialContext(ctx, "unix", path)
		if err != nil {
			return fmt.Errorf("connect to the runtime: %w", err)
		}
		return conn.Close()
	})
}

func (n *NodeConfig) runtimeConfig(p Paths, network containers.Network, log *slog.Logger) containers.Config {
	return containers.Config{
		RootDir: p.Containers(), StateDir: p.Run() + "/containers", SocketPath: p.CRISocket(), CgroupRoot: n.CgroupRoot,
		Network: network, Registries: n.registries(), Logger: log,
	}
}

// client talks to the API server as the node.
func (n *NodeConfig) client(creds *NodeCredentials) (kubernetes.Interface, error) {
	return newClient(n.Server, rest.TLSClientConfig{CAData: creds.CA, CertFile: creds.ClientCert, KeyFile: creds.ClientKey}, creds.conns.DialContext)
}

func newClient(server string, identity rest.TLSClientConfig, dial func(context.Context, string, string) (net.Conn, error)) (kubernetes.Interface, error) {
	cfg := &rest.Config{
		Host: server, UserAgent: "skiff", QPS: 100, Burst: 200,
		TLSClientConfig: identity, Dial: dial,
		ContentConfig: rest.ContentConfig{
			ContentType:        runtime.ContentTypeProtobuf,
			AcceptContentTypes: runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON,
		},
	}
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("make client: %w", err)
	}
	return client, nil
}

// purgeContainers ends all containers from what is on disk.
func purgeContainers(ctx context.Context, n *NodeConfig, p Paths) error {
	if n.PartOf != "" {
		// Links and rules go with the network namespace.
		return containers.Down(ctx, n.runtimeConfig(p, namespaceGone{}, slog.New(slog.DiscardHandler)))
	}
	quiet := slog.New(slog.DiscardHandler)
	sandboxes, err := newSandboxNetwork(n, p, quiet)
	if err != nil {
		return err
	}
	if n.RuntimeEndpoint != "" {
		return errors.Join(n.removePods(ctx), n.runtimeCNI(p, sandboxes.bridge, quiet).remove())
	}
	sandboxes.last = true
	return containers.Down(ctx, n.runtimeConfig(p, sandboxes, quiet))
}
