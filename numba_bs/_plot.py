"""Pictures of layouts; matplotlib is imported when one is asked for."""

import numpy as np

CELLS = 512  # a larger layout is drawn as densities of cells


def plot_layout(layout, ax=None):
    """Draw ``layout`` into ``ax``; see :meth:`numba_bs.Layout.plot`."""
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise ImportError(
            "plot: matplotlib must be installed; pip install 'numba-bs[plot]'"
        ) from error
    if ax is None:
        _, ax = plt.subplots()
    rows, cols = layout.coordinates()
    height, width = layout.block_rows, layout.block_cols
    cells = min(height, CELLS) or 1, min(width, CELLS) or 1
    stored, _, _ = np.histogram2d(
        rows, cols, bins=cells, range=((0, height or 1), (0, width or 1))
    )
    share = stored * (cells[0] * cells[1]) / max(height * width, 1)
    M, K = layout.shape
    image = ax.imshow(
        share,
        cmap="Blues",
        vmin=0,
        vmax=max(share.max(), 1e-9),
        extent=(0, K or 1, M or 1, 0),
        interpolation="nearest",
    )
    if (height, width) != cells:
        ax.figure.colorbar(
            image, ax=ax, label="density of a cell", fraction=0.046, pad=0.04
        )
    R, C = layout.blocksize
    ax.set_title(f"{layout.blocks} blocks of {R}x{C}, density {layout.density:.3g}")
    ax.set_xlabel("column")
    ax.set_ylabel("row")
    return ax
