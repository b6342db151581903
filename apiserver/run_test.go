package apiserver_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/cert"

	"github.com/skiff-k8s/skiff/apiserver"
	"github.com/skiff-k8s/skiff/apiserver/seams"
	"github.com/skiff-k8s/skiff/apiserver/servertest"
)

// pair is a self-signed certificate for 127.0.0.1.
func pair(t testing.TB) (tls.Certificate, []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	pem, err := cert.EncodeCertificates(&x509.Certificate{Raw: der})
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, pem
}

// TestRun: HTTP/2 over TLS, and an orderly end that ends watches.
func TestRun(t *testing.T) {
	certificate, ca := pair(t)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := servertest.New(t, func(c *apiserver.Config) {
		c.Listener, c.TLS = ln, &tls.Config{Certificates: []tls.Certificate{certificate}}
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	conf := &rest.Config{Host: "https://" + ln.Addr().String(), TLSClientConfig: rest.TLSClientConfig{CAData: ca}}
	client, err := rest.HTTPClientFor(conf)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := client.Get(conf.Host + "/readyz?verbose")
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(resp.Body)
	if err != nil || resp.ProtoMajor != 2 || resp.StatusCode != 200 || !strings.HasSuffix(string(b), "readyz check passed\n") {
		t.Errorf("%s %d %q %v", resp.Proto, resp.StatusCode, b, err)
	}
	k, err := kubernetes.NewForConfig(conf)
	if err != nil {
		t.Fatal(err)
	}
	w, err := k.CoreV1().Pods("").Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	select {
	case _, ok := <-w.ResultChan():
		if ok {
			t.Error("an event, want the end")
		}
	case <-time.After(time.Minute):
		t.Error("the watch goes on")
	}
	if err := <-done; err != nil {
		t.Errorf("Run: %v", err)
	}
}

// byHeader authenticates who the User header names.
func byHeader(req *http.Request) (*authenticator.Response, bool, error) {
	name := req.Header.Get("User")
	if name == "" {
		return nil, false, errors.New("nobody")
	}
	return &authenticator.Response{User: &user.DefaultInfo{Name: name, Groups: []string{user.AllAuthenticated}}}, true, nil
}

// audited remembers who did what.
type audited struct {
	mu   sync.Mutex
	seen []string
}

func TestWhoMayWhat(t *testing.T) {
	var log audited
	s := servertest.New(t, func(c *apiserver.Config) {
		c.Authenticator = authenticator.RequestFunc(byHeader)
		c.Authorizer = authorizer.AuthorizerFunc(func(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
			log.mu.Lock()
			defer log.mu.Unlock()
			log.seen = append(log.seen, fmt.Sprintf("%s %s %s %s/%s", a.GetUser().GetName(), a.GetVerb(), a.GetResource(), a.GetNamespace(), a.GetName()))
			if a.GetUser().GetName() == "admin" || (a.GetUser().GetName() == "reader" && a.IsReadOnly()) || (a.GetUser().GetName() == "patcher" && a.GetVerb() == "patch") {
				return authorizer.DecisionAllow, "", nil
			}
			return authorizer.DecisionNoOpinion, "not admin", nil
		})
	})
	do := func(method, path, body string, header ...string) (int, string) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, s.URL+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		for i := 0; i < len(header); i += 2 {
			req.Header.Add(header[i], header[i+1])
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(b)
	}
	ns := `{"kind":"Namespace","apiVersion":"v1","metadata":{"name":"x"}}`
	cm := `{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"c"}}`
	apply := "application/apply-patch+yaml"
	for _, c := range []struct {
		method, path, body string
		header             []string
		code               int
		text               string
	}{
		{"GET", "/api/v1/pods", "", nil, 401, `"message":"Unauthorized","reason":"Unauthorized","code":401`},
		{"GET", "/api/v1/pods", "", []string{"User", "reader"}, 200, "PodList"},
		{"GET", "/version", "", []string{"User", "mallory"}, 403, `forbidden: User \"mallory\" cannot get path \"/version\": not admin`},
		{"POST", "/api/v1/namespaces", ns, []string{"User", "reader"}, 403,
			`namespaces is forbidden: User \"reader\" cannot create resource \"namespaces\" in API group \"\" at the cluster scope: not admin`},
		{"POST", "/api/v1/namespaces", ns, []string{"User", "admin"}, 201, ""},
		{"DELETE", "/api/v1/namespaces/x/pods/p", "", []string{"User", "reader"}, 403,
			`pods \"p\" is forbidden: User \"reader\" cannot delete resource \"pods\" in API group \"\" in the namespace \"x\": not admin`},
		// To apply what is not there takes the right to create.
		{"PATCH", "/api/v1/namespaces/x/configmaps/c?fieldManager=m", cm, []string{"User", "patcher", "Content-Type", apply}, 403, `cannot create resource \"configmaps\"`},
		{"PATCH", "/api/v1/namespaces/x/configmaps/c?fieldManager=m", cm, []string{"User", "admin", "Content-Type", apply}, 201, ""},
		{"PATCH", "/api/v1/namespaces/x/configmaps/c?fieldManager=m", cm, []string{"User", "patcher", "Content-Type", apply}, 200, ""},
		// Impersonation.
		{"POST", "/api/v1/namespaces", ns, []string{"User", "admin", "Impersonate-User", "reader"}, 403, `User \"reader\" cannot create`},
		{"GET", "/api/v1/pods", "", []string{"User", "reader", "Impersonate-User", "admin"}, 403, `cannot impersonate`},
	} {
		code, text := do(c.method, c.path, c.body, c.header...)
		if code != c.code || !strings.Contains(text, c.text) {
			t.Errorf("%s %s %v: %d %s, want %d %s", c.method, c.path, c.header, code, text, c.code, c.text)
		}
	}

	// In process the user is the transport's, and is authorized like any other.
	k, err := kubernetes.NewForConfig(&rest.Config{Host: "http://skiff.local", Transport: s.Transport(&user.DefaultInfo{Name: "reader"})})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := k.CoreV1().Pods("").List(t.Context(), metav1.ListOptions{}); err != nil {
		t.Errorf("in process: %v", err)
	}
	if err := k.CoreV1().Namespaces().Delete(t.Context(), "x", metav1.DeleteOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("in process: %v", err)
	}
}

// refusing admits no Secret, and labels every ConfigMap.
type refusing struct{}

func (refusing) Admit(_ context.Context, a *seams.Attributes) error {
	if cm, ok := a.Object.(*corev1.ConfigMap); ok {
		metav1.SetMetaDataLabel(&cm.ObjectMeta, "by", string(a.Operation))
	}
	return nil
}

func (refusing) Validate(_ context.Context, a *seams.Attributes) error {
	if a.Resource.Resource == "secrets" || a.Operation == seams.Delete && a.Name == "keep" {
		return apierrors.NewForbidden(a.Resource.GroupResource(), a.Name, errors.New("no"))
	}
	return nil
}

// allocating hands out numbers and takes them back.
type allocating struct {
	mu   sync.Mutex
	held map[string]bool
}

func (a *allocating) hooks() []seams.Hooks {
	name := func(o any) string { return o.(metav1.Object).GetName() }
	return []seams.Hooks{{
		Resource: corev1.Resource("services"),
		BeginCreate: func(_ context.Context, obj runtime.Object, dryRun bool) (seams.Finish, error) {
			a.mu.Lock()
			defer a.mu.Unlock()
			n := name(obj)
			if a.held[n] {
				return nil, apierrors.NewConflict(corev1.Resource("services"), n, errors.New("held"))
			}
			a.held[n] = true
			return func(_ context.Context, ok bool) {
				a.mu.Lock()
				defer a.mu.Unlock()
				if !ok {
					delete(a.held, n)
				}
			}, nil
		},
		AfterDelete: func(_ context.Context, obj runtime.Object) {
			a.mu.Lock()
			defer a.mu.Unlock()
			delete(a.held, name(obj))
		},
	}}
}

func TestAdmissionAndHooks(t *testing.T) {
	alloc := &allocating{held: map[string]bool{}}
	s := servertest.New(t, func(c *apiserver.Config) { c.Admission, c.Hooks = refusing{}, alloc.hooks() })
	k := clients(t, s)["json"]
	ctx := t.Context()
	namespace(t, k, "default")
	cm, err := k.CoreV1().ConfigMaps("default").Create(ctx, configMap("keep", "1"), metav1.CreateOptions{})
	if err != nil || cm.Labels["by"] != "CREATE" {
		t.Fatalf("%v %v", cm, err)
	}
	if cm, err = k.CoreV1().ConfigMaps("default").Update(ctx, cm, metav1.UpdateOptions{}); err != nil || cm.Labels["by"] != "UPDATE" {
		t.Fatalf("%v %v", cm, err)
	}
	if err := k.CoreV1().ConfigMaps("default").Delete(ctx, "keep", metav1.DeleteOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("delete: %v", err)
	}
	if err := k.CoreV1().ConfigMaps("default").DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("deletecollection: %v", err)
	}
	if _, err := k.CoreV1().Secrets("default").Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "s"}}, metav1.CreateOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("secret: %v", err)
	}

	svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}}
	if _, err := k.CoreV1().Services("default").Create(ctx, svc, metav1.CreateOptions{DryRun: []string{"All"}}); err != nil || len(alloc.held) != 0 {
		t.Errorf("dry run holds %v, %v", alloc.held, err)
	}
	bad := svc.DeepCopy()
	bad.Spec.Ports[0].Port = 0
	if _, err := k.CoreV1().Services("default").Create(ctx, bad, metav1.CreateOptions{}); !apierrors.IsInvalid(err) || len(alloc.held) != 0 {
		t.Errorf("an invalid one holds %v, %v", alloc.held, err)
	}
	if _, err := k.CoreV1().Services("default").Create(ctx, svc, metav1.CreateOptions{}); err != nil || !alloc.held["a"] {
		t.Errorf("create holds %v, %v", alloc.held, err)
	}
	if err := k.CoreV1().Services("default").Delete(ctx, "a", metav1.DeleteOptions{}); err != nil || len(alloc.held) != 0 {
		t.Errorf("delete leaves %v, %v", alloc.held, err)
	}
}

// TestPanic: a handler's panic is a 500, and the server lives on.
func TestPanic(t *testing.T) {
	s := servertest.New(t, func(c *apiserver.Config) {
		c.Paths = map[string]http.Handler{"/boom": http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic("boom") })}
	})
	for range 2 {
		resp, err := http.Get(s.URL + "/boom")
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || resp.StatusCode != 500 || !bytes.Contains(b, []byte("panic")) {
			t.Errorf("%d %s %v", resp.StatusCode, b, err)
		}
	}
}
