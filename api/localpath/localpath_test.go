package localpath

import (
	"testing"
)

func TestOnlyVolumesNamesAreValid(t *testing.T) {
	for name, want := range map[string]bool{
		"pvc-6a3e2c1e-0b7e-4b0e-9a59-1f6f0b0a7c11": true,
		"pvc-1": true,
		"pvc-":  false, "": false, ".": false, "..": false, "pvc-..": false, "pvc-a/../b": false, "pvc-a/b": false, "etc": false,
		"pvc-\x00": false, "pvc-A": false, "/pvc-a": false,
	} {
		if Valid(name) != want {
			t.Errorf("%q: %v", name, !want)
		}
	}
}

func TestAnnotations(t *testing.T) {
	if _, ok, err := ReadReport(nil); ok || err != nil {
		t.Errorf("no annotation: %v, %v", ok, err)
	}
	r, ok, err := ReadReport(map[string]string{ReportAnnotation: `{"directory":"/d","volumes":["../x","pvc-1"]}`})
	if !ok || err != nil || r.Directory != "/d" || len(r.Volumes) != 1 || r.Volumes[0] != "pvc-1" {
		t.Errorf("%+v, %v, %v", r, ok, err)
	}
	if _, ok, err := ReadReport(map[string]string{ReportAnnotation: `{"directory":"d"}`}); ok || err != nil {
		t.Errorf("a relative directory: %v, %v", ok, err)
	}
	if _, _, err := ReadReport(map[string]string{ReportAnnotation: `{`}); err == nil {
		t.Error("a damaged report is read")
	}
	b, err := Patch("u", OrdersAnnotation, Orders{Make: []string{"pvc-1"}})
	if want := `{"metadata":{"annotations":{"local-path.skiff.dev/orders":"{\"make\":[\"pvc-1\"]}"},"uid":"u"}}`; err != nil || string(b) != want {
		t.Errorf("%s, %v", b, err)
	}
	b, err = Patch("u", OrdersAnnotation, nil)
	if want := `{"metadata":{"annotations":{"local-path.skiff.dev/orders":null},"uid":"u"}}`; err != nil || string(b) != want {
		t.Errorf("%s, %v", b, err)
	}
}
