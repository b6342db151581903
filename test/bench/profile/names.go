package profile

import "strings"

// other is what no rule names.
const other = "other"

// rule gives a cost its name: the innermost function that a rule names decides, so that
// memory allocated by an encoder counts as encoding.
type rule struct {
	what string
	// prefixes of the function's full name; inside are substrings that must be there too, if any.
	prefixes, inside []string
}

const skiff = "github.com/skiff-k8s/skiff/"

// rules are asked in this order for one function.
func rules() []rule {
	return []rule{
		{"garbage collection", []string{"runtime.gcBgMarkWorker", "runtime.gcAssistAlloc", "runtime.bgsweep", "runtime.bgscavenge", "runtime.(*sweepLocked)", "runtime.deductSweepCredit", "runtime.gcStart", "runtime.gcMarkTermination"}, nil},
		{"Go scheduler", []string{"runtime.mcall", "runtime.schedule", "runtime.findRunnable", "runtime.sysmon", "runtime.mstart", "runtime.goready", "runtime.ready", "runtime.wakep"}, nil},
		{"socket system calls", []string{"net.(*netFD)", "net.(*conn)", "net.(*TCPConn)"}, nil},
		{"file system calls", []string{"os.(*File)", "os."}, nil},
		{"client certificates", []string{"crypto/x509", skiff + "apiserver/authn", "k8s.io/apiserver/pkg/authentication"}, nil},
		{"TLS", []string{"crypto/"}, nil},
		{"HTTP/2", []string{"net/http/internal/http2", "net/http.(*http2", "net/http.http2", "golang.org/x/net/http2", "golang.org/x/net/internal/http2", "vendor/golang.org/x/net/http2"}, nil},
		{"gRPC", []string{"google.golang.org/grpc"}, nil},
		{"JSON", []string{"encoding/json", "encoding/json/", "sigs.k8s.io/json", "github.com/json-iterator", "k8s.io/apimachinery/pkg/runtime/serializer/json", "k8s.io/apimachinery/pkg/util/json"}, nil},
		{"deep copies", []string{"k8s.io/"}, []string{"DeepCopy"}},
		{"managed fields", []string{"sigs.k8s.io/structured-merge-diff", "k8s.io/apimachinery/pkg/util/managedfields", skiff + "apiserver/apply"}, nil},
		{"patches", []string{"k8s.io/apimachinery/pkg/util/strategicpatch", "k8s.io/apimachinery/pkg/util/jsonmergepatch", "gopkg.in/evanphx/json-patch", "github.com/evanphx/json-patch", skiff + "apiserver/patch", "k8s.io/apimachinery/third_party/forked/golang/json"}, nil},
		{"protobuf", []string{"k8s.io/api/", "k8s.io/apimachinery/pkg/apis/meta/v1.", "k8s.io/apimachinery/pkg/runtime.(*Unknown)", "k8s.io/apimachinery/pkg/runtime.(*TypeMeta)", "k8s.io/apimachinery/pkg/api/resource.", "k8s.io/apimachinery/pkg/util/intstr"}, []string{"arshal", "Size("}},
		{"protobuf", []string{"k8s.io/api/", "k8s.io/apimachinery/pkg/apis/meta/v1."}, []string{").Size"}},
		{"protobuf", []string{"k8s.io/apimachinery/pkg/runtime/serializer/protobuf", "google.golang.org/protobuf", "github.com/gogo/protobuf", "go.etcd.io/etcd/api", "go.etcd.io/raft/v3/raftpb"}, nil},
		{"conversion to and from internal versions", []string{"k8s.io/kubernetes/pkg/apis", "k8s.io/apimachinery/pkg/conversion"}, []string{"onvert"}},
		{"defaulting and validation", []string{skiff + "api/", "k8s.io/kubernetes/pkg/apis", "k8s.io/kubernetes/pkg/registry", "k8s.io/apimachinery/pkg/api/validation"}, nil},
		{"etcd: Raft, log and database", []string{"go.etcd.io/", skiff + "store/"}, nil},
		{"audit", []string{skiff + "apiserver/audit", "k8s.io/apiserver/pkg/audit", "k8s.io/apiserver/plugin/pkg/audit", "gopkg.in/natefinch/lumberjack"}, nil},
		{"authorization", []string{skiff + "apiserver/authz", "k8s.io/kubernetes/plugin/pkg/auth", "k8s.io/kubernetes/pkg/registry/rbac", "k8s.io/apiserver/pkg/authorization"}, nil},
		{"admission", []string{skiff + "apiserver/admission", "k8s.io/apiserver/pkg/admission", "k8s.io/kubernetes/plugin/pkg/admission"}, nil},
		{"watch cache", []string{skiff + "apiserver/cacher", skiff + "apiserver/watch", "k8s.io/apiserver/pkg/storage", "k8s.io/apiserver/pkg/endpoints/handlers.(*WatchServer)"}, nil},
		{"priority and fairness", []string{"k8s.io/apiserver/pkg/util/flowcontrol"}, nil},
		{"metrics", []string{"github.com/prometheus", "k8s.io/component-base/metrics", "k8s.io/apiserver/pkg/endpoints/metrics"}, nil},
		{"tracing", []string{"go.opentelemetry.io", "k8s.io/component-base/tracing"}, nil},
		{"scheduling", []string{skiff + "scheduler", "k8s.io/kubernetes/pkg/scheduler"}, nil},
		{"controllers", []string{skiff + "controllers", "k8s.io/kubernetes/pkg/controller"}, nil},
		{"nftables", []string{skiff + "proxy", skiff + "host/nft", "github.com/google/nftables", "github.com/mdlayher/netlink", "k8s.io/kubernetes/pkg/proxy", "sigs.k8s.io/knftables"}, nil},
		{"containers", []string{skiff + "containers"}, nil},
		{"kubelet", []string{skiff + "kubelet", "k8s.io/kubernetes/pkg/kubelet"}, nil},
		{"informers and clients", []string{"k8s.io/client-go"}, nil},
		{"request handling", []string{skiff + "apiserver", "k8s.io/apiserver", "net/http.", "net/textproto", "mime"}, nil},
	}
}

func name(stack []string) string {
	all := rules()
	for _, function := range stack {
		for _, r := range all {
			if r.names(function) {
				return r.what
			}
		}
	}
	return other
}

func (r rule) names(function string) bool {
	starts := false
	for _, p := range r.prefixes {
		starts = starts || strings.HasPrefix(function, p)
	}
	if !starts || len(r.inside) == 0 {
		return starts
	}
	for _, in := range r.inside {
		if strings.Contains(function, in) {
			return true
		}
	}
	return false
}
