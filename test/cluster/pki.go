package cluster

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"path/filepath"
	"time"

	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
)

// authority is the cluster's certificate authority, for servers and clients.
type authority struct {
	dir  string
	cert *x509.Certificate
	key  crypto.Signer
}

// newAuthority makes an authority whose files lie in dir: ca.crt, ca.key.
func newAuthority(dir string) (*authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	ca, err := cert.NewSelfSignedCACert(cert.Config{CommonName: "cluster"}, key)
	if err != nil {
		return nil, err
	}
	a := &authority{dir: dir, cert: ca, key: key}
	return a, a.write("ca", ca.Raw, key)
}

// loadAuthority reads what newAuthority has written.
func loadAuthority(dir string) (*authority, error) {
	certs, err := cert.CertsFromFile(filepath.Join(dir, "ca.crt"))
	if err != nil {
		return nil, err
	}
	key, err := keyutil.PrivateKeyFromFile(filepath.Join(dir, "ca.key"))
	if err != nil {
		return nil, err
	}
	signer, ok := key.(crypto.Signer)
	if !ok {
		return nil, fmt.Errorf("%s is not a key to sign with", filepath.Join(dir, "ca.key"))
	}
	return &authority{dir: dir, cert: certs[0], key: signer}, nil
}

// server issues NAME.crt and NAME.key for a server at the given hosts.
func (a *authority) server(name string, hosts ...string) error {
	template := &x509.Certificate{
		Subject:     pkix.Name{CommonName: name},
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	for _, host := range hosts {
		if ip := net.ParseIP(host); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, host)
		}
	}
	return a.issue(name, template)
}

// client issues NAME.crt and NAME.key for a user in the given groups.
func (a *authority) client(name, user string, groups ...string) error {
	return a.issue(name, &x509.Certificate{
		Subject:     pkix.Name{CommonName: user, Organization: groups},
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
}

func (a *authority) issue(name string, template *x509.Certificate) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	if template.SerialNumber, err = rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120)); err != nil {
		return err
	}
	template.NotBefore = time.Now().Add(-time.Hour)
	template.NotAfter = time.Now().AddDate(10, 0, 0)
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	if err != nil {
		return fmt.Errorf("issue the certificate %s: %w", name, err)
	}
	return a.write(name, der, key)
}

// write writes NAME.crt and NAME.key.
func (a *authority) write(name string, der []byte, key crypto.Signer) error {
	block := pem.EncodeToMemory(&pem.Block{Type: cert.CertificateBlockType, Bytes: der})
	if err := cert.WriteCert(filepath.Join(a.dir, name+".crt"), block); err != nil {
		return err
	}
	return writeKey(filepath.Join(a.dir, name+".key"), key)
}

// serviceAccountKey writes the key that signs the tokens of service accounts.
func serviceAccountKey(name string) error {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return err
	}
	return writeKey(name, key)
}

func writeKey(name string, key crypto.Signer) error {
	content, err := keyutil.MarshalPrivateKeyToPEM(key)
	if err != nil {
		return err
	}
	return keyutil.WriteKey(name, content)
}
