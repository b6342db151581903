package main

import (
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"encoding/csv"

	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
)

// serving are upstream's flags of a secure port.
type serving struct {
	address    string
	port       uint16
	cert, key  string
	minVersion string
	ciphers    []string
}

func (s *serving) bind(flags *pflag.FlagSet, port uint16) {
	flags.StringVar(&s.address, "bind-address", "0.0.0.0", "address to listen on")
	flags.Uint16Var(&s.port, "secure-port", port, "port to serve HTTPS on; 0: none")
	s.bindTLS(flags)
}

func (s *serving) bindTLS(flags *pflag.FlagSet) {
	flags.StringVar(&s.cert, "tls-cert-file", "", "serving certificate; none: one that the process signs itself")
	flags.StringVar(&s.key, "tls-private-key-file", "", "its key")
	flags.StringVar(&s.minVersion, "tls-min-version", "VersionTLS12", "lowest TLS version")
	flags.StringSliceVar(&s.ciphers, "tls-cipher-suites", nil, "cipher suites of TLS 1.2; none: Go's")
}

// servingOthers is what upstream's secure ports have besides.
var servingAccepted = []others{
	{"a certificate that the process signs itself stays in memory", "cert-dir"},
	{"HTTP/2 is served with the server's own limits", "http2-max-streams-per-connection"},
	{"one process listens on the port", "permit-address-sharing? permit-port-sharing?"},
}

var servingRefused = []others{
	{"there is one serving certificate", "tls-sni-cert-key"},
	{"Go chooses the curves", "tls-curve-preferences"},
	{"HTTP/2 is always offered", "disable-http2-serving?"},
}

func (s *serving) addrPort() (netip.AddrPort, error) {
	a, err := netip.ParseAddr(s.address)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("--bind-address=%s is no IP address", s.address)
	}
	if a == netip.IPv4Unspecified() {
		a = netip.IPv6Unspecified() // of both families, as upstream listens
	}
	return netip.AddrPortFrom(a, s.port), nil
}

// config is the TLS side of the port; self names a certificate of our own.
func (s *serving) config(self string, ips ...net.IP) (*tls.Config, error) {
	pair, err := certificatePair("tls-cert-file", s.cert, "tls-private-key-file", s.key)
	if err != nil {
		return nil, err
	}
	if pair == nil {
		c, k, err := cert.GenerateSelfSignedCertKey(self, ips, []string{"localhost"})
		if err != nil {
			return nil, fmt.Errorf("make a serving certificate: %w", err)
		}
		p, err := tls.X509KeyPair(c, k)
		if err != nil {
			return nil, fmt.Errorf("make a serving certificate: %w", err)
		}
		pair = &p
	}
	conf := &tls.Config{Certificates: []tls.Certificate{*pair}, ClientAuth: tls.RequestClientCert}
	switch s.minVersion {
	case "", "VersionTLS12":
		conf.MinVersion = tls.VersionTLS12
	case "VersionTLS13":
		conf.MinVersion = tls.VersionTLS13
	default:
		return nil, oneOf("tls-min-version", s.minVersion, "VersionTLS12", "VersionTLS13")
	}
	conf.CipherSuites, err = cipherSuites(s.ciphers)
	return conf, err
}

// cipherSuites are those of crypto/tls with these names; nil if none are named.
func cipherSuites(names []string) ([]uint16, error) {
	var out []uint16
	for _, name := range names {
		i := slices.IndexFunc(tls.CipherSuites(), func(c *tls.CipherSuite) bool { return c.Name == name })
		if i < 0 {
			return nil, fmt.Errorf("--tls-cipher-suites=%s: there is no such cipher suite, or it is insecure", name)
		}
		out = append(out, tls.CipherSuites()[i].ID)
	}
	return out, nil
}

// certificatePair loads a certificate and its key; nil if neither flag is set.
func certificatePair(certFlag, certFile, keyFlag, keyFile string) (*tls.Certificate, error) {
	switch {
	case certFile == "" && keyFile == "":
		return nil, nil
	case certFile == "":
		return nil, fmt.Errorf("--%s is set without --%s", keyFlag, certFlag)
	case keyFile == "":
		return nil, fmt.Errorf("--%s is set without --%s", certFlag, keyFlag)
	}
	pair, err := tls.LoadX509KeyPair(certFile, keyFile)
	if err != nil {
		return nil, fmt.Errorf("--%s, --%s: %w", certFlag, keyFlag, err)
	}
	return &pair, nil
}

// authorities loads CA certificates as PEM and as a pool; nil if the flag is not set.
func authorities(name, file string) ([]byte, *x509.CertPool, error) {
	if file == "" {
		return nil, nil, nil
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, nil, fmt.Errorf("--%s: %w", name, err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, nil, fmt.Errorf("--%s: %s holds no PEM certificate", name, file)
	}
	return text, pool, nil
}

func privateKey(name, file string) (crypto.Signer, error) {
	key, err := keyutil.PrivateKeyFromFile(file)
	if err != nil {
		return nil, fmt.Errorf("--%s: %w", name, err)
	}
	signer, ok := key.(crypto.Signer)
	if !ok {
		return nil, fmt.Errorf("--%s: a %T in %s cannot sign", name, key, file)
	}
	return signer, nil
}

func publicKeys(name string, files []string) ([]crypto.PublicKey, error) {
	var out []crypto.PublicKey
	for _, file := range files {
		keys, err := keyutil.PublicKeysFromFile(file)
		if err != nil {
			return nil, fmt.Errorf("--%s: %w", name, err)
		}
		for _, k := range keys {
			out = append(out, k)
		}
	}
	return out, nil
}

// prefixes reads a list of CIDRs.
func prefixes(name string, list []string) ([]netip.Prefix, error) {
	var out []netip.Prefix
	for _, s := range list {
		p, err := netip.ParsePrefix(strings.TrimSpace(s))
		if err != nil {
			return nil, fmt.Errorf("--%s=%s is no CIDR such as 10.96.0.0/16", name, s)
		}
		out = append(out, p.Masked())
	}
	return out, nil
}

// onePerFamily refuses more than one range of a family.
func onePerFamily(name string, list []netip.Prefix) error {
	if len(list) > 2 || len(list) == 2 && list[0].Addr().Is6() == list[1].Addr().Is6() {
		var texts []string
		for _, p := range list {
			texts = append(texts, p.String())
		}
		return fmt.Errorf("--%s=%s: give one range, or one of IPv4 and one of IPv6", name, strings.Join(texts, ","))
	}
	return nil
}

// tokenFile reads upstream's CSV of static tokens: token,user,uid[,"group,group"].
func tokenFile(name, file string) (map[string]user.Info, error) {
	if file == "" {
		return nil, nil
	}
	f, err := os.Open(file)
	if err != nil {
		return nil, fmt.Errorf("--%s: %w", name, err)
	}
	defer f.Close()
	r := csv.NewReader(f)
	r.FieldsPerRecord = -1
	rows, err := r.ReadAll()
	if err != nil {
		return nil, fmt.Errorf("--%s: %w", name, err)
	}
	out := map[string]user.Info{}
	for i, row := range rows {
		if len(row) < 3 || row[0] == "" {
			return nil, fmt.Errorf("--%s: %s, line %d: want token,user,uid and perhaps groups", name, file, i+1)
		}
		u := &user.DefaultInfo{Name: row[1], UID: row[2]}
		if len(row) > 3 && row[3] != "" {
			u.Groups = strings.Split(row[3], ",")
		}
		out[row[0]] = u
	}
	return out, nil
}
