package controlplane

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"sync/atomic"

	"spot-handler/e2e/controlplane/internal/processes"
)

// Options say what runs, and how.
type Options = processes.Options

// Cluster is a running control plane.
type Cluster struct {
	*processes.Running

	auditLog  string // AuditLog, also for a borrower that did not ask for it
	auditFrom int64  // where its part begins

	bareNodes atomic.Int64 // that were ever created
}

// Start starts a control plane, and returns when all of it is ready. The context limits
// only the start. The caller must Stop it eventually; if the caller dies first, the
// cluster still ends.
func Start(ctx context.Context, options Options) (*Cluster, error) {
	running, err := processes.Start(ctx, options)
	if err != nil {
		return nil, fmt.Errorf("start a control plane: %w", err)
	}
	return &Cluster{Running: running, auditLog: running.AuditLog}, nil
}

// Reset deletes all objects that were not there when the cluster was started, starts
// Karpenter again, and returns when all is ready. AuditText starts empty again. The cluster must
// be Reusable, and must be stopped after an error.
func (c *Cluster) Reset(ctx context.Context) error {
	if err := c.Running.Reset(ctx); err != nil {
		return fmt.Errorf("reset the control plane: %w", err)
	}
	if file, err := os.Stat(c.auditLog); err == nil {
		c.auditFrom = file.Size()
	}
	return nil
}

// AuditText is what the audit log has of this cluster since its start, or since it was
// Reset, without so many bytes that the caller knows: complete lines.
func (c *Cluster) AuditText(known int64) ([]byte, error) {
	file, err := os.Open(c.AuditLog)
	if err != nil {
		return nil, fmt.Errorf("read the audit log: %w", err)
	}
	defer file.Close()
	if _, err := file.Seek(c.auditFrom+known, io.SeekStart); err != nil {
		return nil, fmt.Errorf("read the audit log: %w", err)
	}
	text, err := io.ReadAll(file)
	if err != nil {
		return nil, fmt.Errorf("read the audit log: %w", err)
	}
	return text[:bytes.LastIndexByte(text, '\n')+1], nil
}
