"""Operations of the threads of a warp together, of a kernel that runs in NumPy."""

import numpy as np


class Warps:
    """The operations; operands and results are arrays, [programs, threads] or [1, 1]."""

    def by_warp(self, mask, x):
        """[..., 32]; all threads of a warp must be there."""
        warps = self.active.reshape(-1, 32)
        assert (mask == -1).all()
        assert (warps.all(1) | ~warps.any(1)).all()
        return np.broadcast_to(x, self.active.shape).reshape(len(self.active), -1, 32)

    def nvvm_stmatrix(self, op, address, *words):
        """Word i of a thread is of row lane // 4 of matrix i, which thread 8 i + row places."""
        rows = self.by_warp(np.int32(-1), address).reshape(len(self.active), -1, 4, 8)
        lane = np.arange(32)
        for number, word in enumerate(words):
            to = rows[:, :, number, lane // 4] + lane % 4 * 4
            self.write(to.reshape(self.active.shape), word)

    def nvvm_vote_sync(self, op, mask, condition):
        assert "ballot" in str(op.attributes["kind"])
        bits = self.by_warp(mask, condition).astype(np.uint32) << np.arange(32, dtype=np.uint32)
        votes = np.bitwise_or.reduce(bits, -1, keepdims=True).view(np.int32)
        return np.repeat(votes, 32, -1).reshape(self.active.shape)

    def nvvm_shfl_sync(self, op, mask, x, distance, clamp):
        assert (clamp == 31).all()
        lane, kind = np.arange(32), str(op.attributes["kind"])
        source = {"bfly": lane ^ distance.item(), "idx": lane * 0 + distance.item()}
        (source,) = [source[name] for name in source if name in kind]
        return self.by_warp(mask, x)[..., source].reshape(self.active.shape)
