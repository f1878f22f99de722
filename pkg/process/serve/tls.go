package serve

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"go.uber.org/zap"
)

// expiresSoon is the remaining validity of a certificate at which the server logs a warning.
const expiresSoon = 30 * 24 * time.Hour

// MutualTLS names the files with the server's certificate and with the accepted authorities of clients.
type MutualTLS struct {
	CertFile string // PEM, with the chain up to the authority
	KeyFile  string
	// ClientCAFile contains the authorities in PEM. One of them must have signed a client's
	// certificate.
	ClientCAFile string
	// ClientName is the common name of the accepted clients. The authority may sign certificates for
	// other clients too.
	ClientName string
}

// Listener returns a listener that serves only the accepted clients. It reads the files again for each
// connection. If they are unreadable, it uses the last ones that it read.
func (m MutualTLS) Listener(inner net.Listener, log *zap.Logger) (net.Listener, error) {
	files := &tlsFiles{source: m, log: log}
	if _, err := files.config(); err != nil {
		return nil, err
	}
	return tls.NewListener(inner, &tls.Config{
		MinVersion:         tls.VersionTLS13,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return files.config() },
	}), nil
}

// Read reads the files, and returns the configuration.
func (m MutualTLS) Read() (*tls.Config, error) {
	pair, err := tls.LoadX509KeyPair(m.CertFile, m.KeyFile)
	if err != nil {
		return nil, fmt.Errorf("read %s and %s: %w", m.CertFile, m.KeyFile, err)
	}
	authorities, err := os.ReadFile(m.ClientCAFile)
	if err != nil {
		return nil, fmt.Errorf("read the authorities of clients: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(authorities) {
		return nil, fmt.Errorf("%s contains no certificate of an authority", m.ClientCAFile)
	}
	return &tls.Config{
		MinVersion:   tls.VersionTLS13,
		Certificates: []tls.Certificate{pair},
		ClientAuth:   tls.RequireAndVerifyClientCert,
		ClientCAs:    pool,
		// A ticket would stay valid after its client's authority is removed.
		SessionTicketsDisabled: true,
		VerifyConnection:       m.verifyName,
	}, nil
}

func (m MutualTLS) verifyName(state tls.ConnectionState) error {
	if len(state.PeerCertificates) == 0 {
		return errors.New("the client has sent no certificate")
	}
	if got := state.PeerCertificates[0].Subject.CommonName; got != m.ClientName {
		return fmt.Errorf("the client has a certificate for %q, want %q", got, m.ClientName)
	}
	return nil
}

// tlsFiles stores the last configuration that was read completely. While somebody replaces the files, a read
// may find an old certificate with a new key.
type tlsFiles struct {
	source MutualTLS
	log    *zap.Logger

	mu         sync.Mutex
	lastConfig *tls.Config
	serial     string // of the certificate that was last logged
	warned     bool   // its expiry has been logged
}

func (f *tlsFiles) config() (*tls.Config, error) {
	config, err := f.source.Read()
	f.mu.Lock()
	defer f.mu.Unlock()
	if err != nil {
		if f.lastConfig == nil {
			return nil, err
		}
		f.log.Warn("certificates cannot be read; the last ones stay in use", zap.Error(err))
		return f.lastConfig, nil
	}
	f.lastConfig = config
	f.logCertificate(config.Certificates[0].Leaf)
	return config, nil
}

// logCertificate logs a new certificate, and once its approaching expiry.
func (f *tlsFiles) logCertificate(leaf *x509.Certificate) {
	if serial := leaf.SerialNumber.String(); serial != f.serial {
		f.serial, f.warned = serial, false
		f.log.Info("certificate read", zap.String("serial", serial), zap.Time("until", leaf.NotAfter))
	}
	if !f.warned && time.Until(leaf.NotAfter) < expiresSoon {
		f.warned = true
		f.log.Warn("the certificate expires soon", zap.Time("until", leaf.NotAfter))
	}
}
