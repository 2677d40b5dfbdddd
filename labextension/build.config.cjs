const path = require('path');

module.exports = {
  // Named module ids: the same source gives the same bytes in any folder.
  optimization: { moduleIds: 'named', chunkIds: 'named' },
  resolve: {
    // The views are plain modules of the Python package, which has a host of its own for them.
    alias: { 'mgpu-views': path.resolve(__dirname, '../jupyter_mgpu/widgets/views') }
  }
};
