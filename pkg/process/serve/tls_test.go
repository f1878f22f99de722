package serve

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest"
	"go.uber.org/zap/zaptest/observer"
)

// authority issues certificates for tests.
type authority struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	a := &authority{t: t}
	a.cert, a.key = a.sign(&x509.Certificate{
		Subject: pkix.Name{CommonName: "authority"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	})
	return a
}

func (a *authority) sign(template *x509.Certificate) (*x509.Certificate, *ecdsa.PrivateKey) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		a.t.Fatal(err)
	}
	template.SerialNumber = serial
	template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(24*time.Hour)
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer)
	if err != nil {
		a.t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		a.t.Fatal(err)
	}
	return cert, key
}

func (a *authority) pem() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw})
}

func (a *authority) client(name string) tls.Certificate {
	cert, key := a.sign(&x509.Certificate{Subject: pkix.Name{CommonName: name}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	return tls.Certificate{Certificate: [][]byte{cert.Raw}, PrivateKey: key}
}

// server writes the files of a server on 127.0.0.1 that accepts clients of this authority.
func (a *authority) server(m MutualTLS) *big.Int {
	a.t.Helper()
	cert, key := a.sign(&x509.Certificate{
		Subject: pkix.Name{CommonName: "server"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	})
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		a.t.Fatal(err)
	}
	for file, text := range map[string][]byte{
		m.CertFile:     pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Raw}),
		m.KeyFile:      pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}),
		m.ClientCAFile: a.pem(),
	} {
		if err := os.WriteFile(file, text, 0o600); err != nil {
			a.t.Fatal(err)
		}
	}
	return cert.SerialNumber
}

func filesIn(dir string) MutualTLS {
	return MutualTLS{
		CertFile: filepath.Join(dir, "tls.crt"), KeyFile: filepath.Join(dir, "tls.key"),
		ClientCAFile: filepath.Join(dir, "ca.crt"), ClientName: "scheduler",
	}
}

// serveTLS serves "hello" until the test ends, and returns the address.
func serveTLS(t *testing.T, m MutualTLS) string {
	t.Helper()
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	listener, err := m.Listener(inner, zaptest.NewLogger(t))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- Run(ctx, listener, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") }))
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return listener.Addr().String()
}

// ask makes one request on a new connection and returns the serial number of the server's certificate.
func ask(t *testing.T, url string, roots []byte, certificates ...tls.Certificate) (*big.Int, error) {
	t.Helper()
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(roots)
	client := &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		TLSClientConfig:   &tls.Config{RootCAs: pool, Certificates: certificates},
	}}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, errors.New(resp.Status)
	}
	if body, err := io.ReadAll(resp.Body); err != nil || string(body) != "hello" {
		t.Errorf("answer %q, %v", body, err)
	}
	return resp.TLS.PeerCertificates[0].SerialNumber, nil
}

func TestOnlyTheClientIsServed(t *testing.T) {
	ours, other := newAuthority(t), newAuthority(t)
	m := filesIn(t.TempDir())
	ours.server(m)
	address := serveTLS(t, m)
	for name, tc := range map[string]struct {
		url          string
		certificates []tls.Certificate
		served       bool
	}{
		"the client":                  {"https://" + address, []tls.Certificate{ours.client("scheduler")}, true},
		"another of the authority's":  {"https://" + address, []tls.Certificate{ours.client("somebody")}, false},
		"its name from elsewhere":     {"https://" + address, []tls.Certificate{other.client("scheduler")}, false},
		"nobody":                      {"https://" + address, nil, false},
		"the client, without any TLS": {"http://" + address, []tls.Certificate{ours.client("scheduler")}, false},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := ask(t, tc.url, ours.pem(), tc.certificates...); (err == nil) != tc.served {
				t.Errorf("error %v, want it served: %t", err, tc.served)
			}
		})
	}
}

// New files apply to the next connection, even if they have another authority.
func TestNewCertificatesCount(t *testing.T) {
	before, after := newAuthority(t), newAuthority(t)
	m := filesIn(t.TempDir())
	first := before.server(m)
	url := "https://" + serveTLS(t, m)
	if got, err := ask(t, url, before.pem(), before.client("scheduler")); err != nil || got.Cmp(first) != 0 {
		t.Fatalf("shows certificate %v, %v, want %v", got, err, first)
	}
	second := after.server(m)
	if got, err := ask(t, url, after.pem(), after.client("scheduler")); err != nil || got.Cmp(second) != 0 {
		t.Errorf("shows certificate %v, %v, want %v", got, err, second)
	}
	if _, err := ask(t, url, after.pem(), before.client("scheduler")); err == nil {
		t.Error("whom the authority before had signed is still served")
	}
	if err := os.WriteFile(m.KeyFile, []byte("half of a k"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := ask(t, url, after.pem(), after.client("scheduler")); err != nil || got.Cmp(second) != 0 {
		t.Errorf("with a broken file: certificate %v, %v, want the one before, %v", got, err, second)
	}
}

func TestCertificatesThatAreMissing(t *testing.T) {
	a := newAuthority(t)
	for file, want := range map[string]string{"tls.crt": "tls.crt", "tls.key": "tls.key", "ca.crt": "the authorities of clients"} {
		dir := t.TempDir()
		m := filesIn(dir)
		a.server(m)
		if err := os.Remove(filepath.Join(dir, file)); err != nil {
			t.Fatal(err)
		}
		if _, err := m.Read(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("without %s: %v", file, err)
		}
	}
	m := filesIn(t.TempDir())
	a.server(m)
	if err := os.WriteFile(m.ClientCAFile, []byte("no PEM"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := m.Read(); err == nil || !strings.Contains(err.Error(), "contains no certificate of an authority") {
		t.Errorf("with no authority: %v", err)
	}
}

// A process reads its certificate for each connection, but logs the approaching expiry only once.
func TestTheEndOfACertificateIsToldOnce(t *testing.T) {
	core, logs := observer.New(zap.WarnLevel)
	files := &tlsFiles{log: zap.New(core)}
	leaf := &x509.Certificate{SerialNumber: big.NewInt(1)}
	for _, left := range []time.Duration{2 * expiresSoon, expiresSoon / 2, expiresSoon / 3} {
		leaf.NotAfter = time.Now().Add(left)
		files.logCertificate(leaf)
	}
	if got := logs.FilterMessage("the certificate expires soon").Len(); got != 1 || logs.Len() != 1 {
		t.Errorf("the end is told %d times, in %d lines, want once", got, logs.Len())
	}
	files.logCertificate(&x509.Certificate{SerialNumber: big.NewInt(2), NotAfter: leaf.NotAfter})
	if logs.Len() != 2 {
		t.Errorf("%d lines after another that ends soon, want 2", logs.Len())
	}
}
