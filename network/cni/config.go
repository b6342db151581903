package cni

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/invoke"
)

// ErrNoConfiguration says that the directory holds no usable configuration.
var ErrNoConfiguration = errors.New("no CNI configuration")

// load reads the configuration that counts: the first file in the order of names, as other runtimes
// have it. Those before it that are wrong are skipped, and told.
func load(dir string) (*libcni.NetworkConfigList, []error, error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, nil, fmt.Errorf("read CNI configuration: %w", err)
	}
	var wrong []error
	for _, e := range entries { // sorted by name
		if e.IsDir() {
			continue
		}
		path := filepath.Join(dir, e.Name())
		var list *libcni.NetworkConfigList
		var err error
		switch filepath.Ext(e.Name()) {
		case ".conflist":
			list, err = libcni.NetworkConfFromFile(path)
		case ".conf", ".json":
			list, err = single(path)
		default:
			continue
		}
		if err == nil {
			err = checkList(list)
		}
		if err != nil {
			wrong = append(wrong, fmt.Errorf("%s: %w", path, err))
			continue
		}
		return list, wrong, nil
	}
	if len(wrong) > 0 {
		return nil, wrong, fmt.Errorf("%w is usable in %s: %w", ErrNoConfiguration, dir, errors.Join(wrong...))
	}
	return nil, nil, fmt.Errorf("%w in %s yet; whoever provides the pod network puts a .conflist there", ErrNoConfiguration, dir)
}

// single reads the older form, one plugin a file.
func single(path string) (*libcni.NetworkConfigList, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	conf, err := libcni.NetworkPluginConfFromBytes(text)
	if err != nil {
		return nil, err
	}
	if conf.Network.Type == "" {
		return nil, errors.New("has no \"type\"; a list of plugins belongs into a .conflist")
	}
	return libcni.ConfListFromConf(conf)
}

func checkList(l *libcni.NetworkConfigList) error {
	if l.Name == "" {
		return errors.New("has no \"name\"")
	}
	if len(l.Plugins) == 0 {
		return errors.New("lists no plugins")
	}
	for i, p := range l.Plugins {
		if strings.ContainsRune(p.Network.Type, filepath.Separator) || p.Network.Type == "" {
			return fmt.Errorf("plugins[%d].type %q is no name of a program", i, p.Network.Type)
		}
	}
	return nil
}

// findPlugins checks that the programs are there, interfaces' and addresses' alike.
func findPlugins(l *libcni.NetworkConfigList, dirs []string) error {
	var missing []string
	for _, p := range l.Plugins {
		for _, name := range []string{p.Network.Type, p.Network.IPAM.Type} {
			if name == "" || slices.Contains(missing, name) {
				continue
			}
			if _, err := invoke.FindInPath(name, dirs); err != nil {
				missing = append(missing, name)
			}
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("network %q needs the CNI plugins %s, which are not in %s", l.Name, strings.Join(missing, ", "), strings.Join(dirs, ", "))
	}
	return nil
}

// declares tells whether a plugin of the list takes what a capability stands for.
func declares(l *libcni.NetworkConfigList, capability string) bool {
	return slices.ContainsFunc(l.Plugins, func(p *libcni.PluginConfig) bool { return p.Network.Capabilities[capability] })
}
