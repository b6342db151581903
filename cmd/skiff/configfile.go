package main

import (
	"errors"
	"fmt"
	"os"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
)

// readConfig reads a component's configuration file into one of upstream's published types.
// It is strict: a field that the type does not have is an error that names it.
func readConfig(file, apiVersion, kind string, into any) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("--config: %w", err)
	}
	data, err := yaml.YAMLToJSONStrict(text)
	if err != nil {
		return fmt.Errorf("--config: %s: %w", file, err)
	}
	var meta metav1.TypeMeta
	if err := json.UnmarshalCaseSensitivePreserveInts(data, &meta); err != nil {
		return fmt.Errorf("--config: %s: %w", file, err)
	}
	if meta.APIVersion != apiVersion || meta.Kind != kind {
		return fmt.Errorf("--config: %s holds apiVersion %q, kind %q; want %s, %s", file, meta.APIVersion, meta.Kind, apiVersion, kind)
	}
	if err := strictly(data, into); err != nil {
		return fmt.Errorf("--config: %s: %w", file, err)
	}
	return nil
}

// strictly decodes JSON; all strictness errors become one line.
func strictly(data []byte, into any) error {
	strict, err := json.UnmarshalStrict(data, into)
	if err != nil {
		return err
	}
	if len(strict) == 0 {
		return nil
	}
	lines := make([]string, len(strict))
	for i, e := range strict {
		lines[i] = e.Error()
	}
	return errors.New(strings.Join(lines, "; "))
}
