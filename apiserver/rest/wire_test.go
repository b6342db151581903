package rest_test

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/skiff-k8s/skiff/apiserver/servertest"
)

// served is a server with three ConfigMaps in namespace default.
func served(t *testing.T) *servertest.Server {
	t.Helper()
	s := servertest.New(t)
	k, err := kubernetes.NewForConfig(s.Config())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := k.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("c%d", i)}, Data: map[string]string{"html": "<&>", "k": "v"}}
		if _, err := k.CoreV1().ConfigMaps("default").Create(t.Context(), cm, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

func read(t *testing.T, s *servertest.Server, path, accept string, header ...string) (*http.Response, []byte) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Accept", accept)
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
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
	return resp, b
}

// TestListsAreAsIfEncoded: lists put together from cached encodings are byte for byte
// what apimachinery's serializers write.
func TestListsAreAsIfEncoded(t *testing.T) {
	s := served(t)
	for _, path := range []string{"/api/v1/configmaps", "/api/v1/configmaps?limit=2", "/api/v1/namespaces/none/configmaps"} {
		for _, media := range []string{"application/json", "application/vnd.kubernetes.protobuf", "application/yaml"} {
			_, got := read(t, s, path, media)
			obj, _, err := scheme.Codecs.UniversalDeserializer().Decode(got, nil, nil)
			if err != nil {
				t.Fatalf("%s %s: %v in %q", path, media, err, got)
			}
			list := obj.(*corev1.ConfigMapList)
			if list.Items == nil {
				list.Items = []corev1.ConfigMap{}
			}
			info, _ := runtime.SerializerInfoForMediaType(serializer.NewCodecFactory(scheme.Scheme).SupportedMediaTypes(), media)
			want, err := runtime.Encode(info.Serializer, list)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got, want) {
				t.Errorf("%s as %s\n got %q\nwant %q", path, media, got, want)
			}
		}
	}
}

// TestProtobufWatchFrames decodes a watch as clients do.
func TestProtobufWatchFrames(t *testing.T) {
	s := served(t)
	resp, b := read(t, s, "/api/v1/configmaps?watch=true&timeoutSeconds=1", "application/vnd.kubernetes.protobuf")
	if got := resp.Header.Get("Content-Type"); got != "application/vnd.kubernetes.protobuf;stream=watch" {
		t.Errorf("content type %q", got)
	}
	raw := protobuf.NewRawSerializer(scheme.Scheme, scheme.Scheme)
	n := 0
	for len(b) > 0 {
		size := binary.BigEndian.Uint32(b)
		frame := b[4 : 4+size]
		b = b[4+size:]
		var ev metav1.WatchEvent
		gvk := corev1.SchemeGroupVersion.WithKind("WatchEvent")
		if _, _, err := raw.Decode(frame, &gvk, &ev); err != nil {
			t.Fatal(err)
		}
		obj, _, err := scheme.Codecs.UniversalDeserializer().Decode(ev.Object.Raw, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		if cm := obj.(*corev1.ConfigMap); ev.Type != "ADDED" || cm.Name != fmt.Sprintf("c%d", n) || cm.Data["html"] != "<&>" {
			t.Errorf("event %d: %s %v", n, ev.Type, cm)
		}
		n++
	}
	if n != 3 {
		t.Errorf("%d events", n)
	}
}

func TestGzip(t *testing.T) {
	s := served(t)
	k, err := kubernetes.NewForConfig(s.Config())
	if err != nil {
		t.Fatal(err)
	}
	big := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "big"}, Data: map[string]string{"k": strings.Repeat("x", 200<<10)}}
	if _, err := k.CoreV1().ConfigMaps("default").Create(t.Context(), big, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{"/api/v1/namespaces/default/configmaps/big": "gzip", "/api/v1/namespaces/default/configmaps/c0": ""} {
		resp, _ := read(t, s, path, "application/json", "Accept-Encoding", "gzip")
		if got := resp.Header.Get("Content-Encoding"); got != want {
			t.Errorf("%s: encoding %q, want %q", path, got, want)
		}
	}
	_, b := read(t, s, "/api/v1/namespaces/default/configmaps/big", "application/json") // decompressed by the client
	var cm corev1.ConfigMap
	if err := json.Unmarshal(b, &cm); err != nil || len(cm.Data["k"]) != 200<<10 {
		t.Errorf("big: %d bytes, %v", len(cm.Data["k"]), err)
	}
}

// TestTooLarge: a body beyond the limit is refused by name.
func TestTooLarge(t *testing.T) {
	s := served(t)
	body := `{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"x"},"data":{"k":"` + strings.Repeat("x", 4<<20) + `"}}`
	resp, err := http.Post(s.URL+"/api/v1/namespaces/default/configmaps", "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	if resp.StatusCode != http.StatusRequestEntityTooLarge || !strings.Contains(string(b), "Request entity too large: limit is 3145728") {
		t.Errorf("%d %s", resp.StatusCode, b)
	}
}
