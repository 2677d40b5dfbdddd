import 'mgpu-views/views.css';
import './index.css';
