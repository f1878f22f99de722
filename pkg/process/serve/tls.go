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

// expiresSoon is how long before its end a certificate is spoken of in the log.
const expiresSoon = 30 * 24 * time.Hour

// MutualTLS says with which files a server shows who it is, and whom it believes.
type MutualTLS struct {
	CertFile string // of the server, PEM, with the chain up to its authority
	KeyFile  string
	// ClientCAFile has the authorities, PEM; one of them must have signed a
	// client's certificate.
	ClientCAFile string
	// ClientName is the common name that a client's certificate must have: an
	// authority may sign for others too.
	ClientName string
}

// Listener returns a listener on which only the client is served. The files are
// read again for each connection, so new ones count from then on; while they
// cannot be read, those before them do.
func (m MutualTLS) Listener(inner net.Listener, log *zap.Logger) (net.Listener, error) {
	files := &tlsFiles{from: m, log: log}
	if _, err := files.config(); err != nil {
		return nil, err
	}
	return tls.NewListener(inner, &tls.Config{
		MinVersion:         tls.VersionTLS13,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return files.config() },
	}), nil
}

// Read returns the configuration that the files make now.
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
		return nil, fmt.Errorf("%s has no certificate of an authority in it", m.ClientCAFile)
	}
	return &tls.Config{
		MinVersion:   tls.VersionTLS13,
		Certificates: []tls.Certificate{pair},
		ClientAuth:   tls.RequireAndVerifyClientCert,
		ClientCAs:    pool,
		// A ticket would outlive the authority that its client was believed for.
		SessionTicketsDisabled: true,
		VerifyConnection:       m.verifyName,
	}, nil
}

func (m MutualTLS) verifyName(state tls.ConnectionState) error {
	if len(state.PeerCertificates) == 0 {
		return errors.New("the client shows no certificate")
	}
	if got := state.PeerCertificates[0].Subject.CommonName; got != m.ClientName {
		return fmt.Errorf("the client is %q, and only %q is served", got, m.ClientName)
	}
	return nil
}

// tlsFiles remembers what was last read in whole: of two files that are being
// exchanged, one may be read old and the other new.
type tlsFiles struct {
	from MutualTLS
	log  *zap.Logger

	mu     sync.Mutex
	last   *tls.Config
	serial string // of the certificate that last was spoken of in the log
	warned bool   // that its end is near
}

func (f *tlsFiles) config() (*tls.Config, error) {
	config, err := f.from.Read()
	f.mu.Lock()
	defer f.mu.Unlock()
	if err != nil {
		if f.last == nil {
			return nil, err
		}
		f.log.Warn("certificates cannot be read; those before them are used", zap.Error(err))
		return f.last, nil
	}
	f.last = config
	f.tell(config.Certificates[0].Leaf)
	return config, nil
}

// tell logs a certificate that is new here, and once that its end is near.
func (f *tlsFiles) tell(leaf *x509.Certificate) {
	if serial := leaf.SerialNumber.String(); serial != f.serial {
		f.serial, f.warned = serial, false
		f.log.Info("certificate read", zap.String("serial", serial), zap.Time("until", leaf.NotAfter))
	}
	if !f.warned && time.Until(leaf.NotAfter) < expiresSoon {
		f.warned = true
		f.log.Warn("the certificate ends soon", zap.Time("until", leaf.NotAfter))
	}
}
